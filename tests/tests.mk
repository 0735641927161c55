# ---- simulator -----------------------------------------------------------------------------------------------
# make sim SEEDS=n [FIRST=s] [JOBS=j]; make sim SEED=s runs one again.
SEEDS ?= 200
# The world is an archive like any folder's, so that unit tests can use it ("links: ... tests/sim").
$(eval $(call archive_rule,tests/sim))
SIM_LIBS := $(B)/lib/tests-sim.a $(foreach d,node/base proto consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host metastore node/queue,$(B)/lib/$(subst /,-,$(d)).a) $(B)/lib/gen.a

$(B)/sim: $(B)/obj/tests/sim/sim_main.o $(SIM_LIBS)
	$(CC) $(LDFLAGS_ALL) -Wl,--wrap=host_group_add -o $@ $< -Wl,--start-group $(SIM_LIBS) -Wl,--end-group $(LIBS_ALL)

sim: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) $(B)/sim
ifdef SEED
	$(B)/sim --seed $(SEED) $(if $(V),--verbose)
else
	$(B)/sim --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)) $(if $(JOBS),--jobs $(JOBS))
endif


# Each kept fault must be found: tests/sim/faults. make sim-faults [FAULTS="name..."]
sim-faults: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) $(B)/sim
	tests/sim/sim_faults --build $(B) $(FAULTS)
test-programs: $(B)/sim

# ---- load ----------------------------------------------------------------------------------------------------
$(eval $(call archive_rule,tests/tools))
LOAD_LIBS := $(B)/lib/tests-tools.a $(foreach d,proto/amqp09 node/base,$(B)/lib/$(subst /,-,$(d)).a)
$(B)/warren-load: $(LOAD_LIBS)
	$(CC) $(LDFLAGS_ALL) -o $@ -Wl,--whole-archive $(B)/lib/tests-tools.a -Wl,--no-whole-archive $(LOAD_LIBS) $(LIBS_ALL)
test-programs: $(B)/warren-load

# ---- clients that keep books: chaos and soak -------------------------------------------------------------------
$(eval $(call archive_rule,tests/ledger))
LEDGER_LIBS := $(foreach d,proto/amqp09 node/base,$(B)/lib/$(subst /,-,$(d)).a)
$(B)/warren-ledger: $(B)/lib/tests-ledger.a $(LEDGER_LIBS)
	$(CC) $(LDFLAGS_ALL) -o $@ -Wl,--whole-archive $(B)/lib/tests-ledger.a -Wl,--no-whole-archive $(LEDGER_LIBS) $(LIBS_ALL)
test-programs: $(B)/warren-ledger

# make chaos [CHAOS_S=1800] [CHAOS_SEED=n]: faults on real processes at full length. make soak [SOAK_S=1200].
CHAOS_S ?= 1800
SOAK_S ?= 1200
.PHONY: chaos soak
chaos: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) programs test-programs
	@WARREN_BUILD=$(abspath $(B)) CHAOS_S=$(CHAOS_S) $(if $(CHAOS_SEED),CHAOS_SEED=$(CHAOS_SEED)) tests/fault/test_chaos.py
soak: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) programs test-programs
	@WARREN_BUILD=$(abspath $(B)) SOAK_S=$(SOAK_S) tests/fault/soak.py

# ---- fuzzers and benchmarks ------------------------------------------------------------------------------------
FUZZ_S ?= 20
FUZZERS := $(patsubst tests/fuzz/%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
$(B)/tests/fuzz/%: tests/fuzz/%.c $$(call links_of,tests/fuzz/$$*.c) | $(PB_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) $(FUZZ_FLAGS) -Wno-unused-parameter -MMD -MP -MF $@.d -MT $@ $(LDFLAGS_ALL) -o $@ $< -Wl,--start-group $(call links_of,$<) -Wl,--end-group $(LIBS_ALL)
fuzz-programs: $(FUZZERS:%=$(B)/tests/fuzz/%)

# With clang: coverage-guided. Without: random and damaged bytes.
fuzz: deps
	@if command -v clang >/dev/null && echo 'int LLVMFuzzerTestOneInput(const char *d, long n) { return 0; }' | clang -x c -fsanitize=fuzzer -o /dev/null - 2>/dev/null; then \
	  $(MAKE) --no-print-directory -j$$(nproc) B=build/fuzz CC=clang SAN=address,undefined OPT="-O1 -g" CFLAGS="-fsanitize=fuzzer-no-link -Wno-error" \
	    FUZZ_FLAGS="-fsanitize=fuzzer -DFUZZ_ENGINE" fuzz-programs && \
	  for f in $(FUZZERS); do echo "$$f"; build/fuzz/tests/fuzz/$$f -max_total_time=$(FUZZ_S) -timeout=10 -max_len=4096 -print_final_stats=1 >build/fuzz/$$f.log 2>&1; rc=$$?; \
	    grep -E 'ERROR|SUMMARY|number_of_executed|Assert|runtime error' build/fuzz/$$f.log; [ $$rc = 0 ] || exit 1; done; \
	else \
	  $(MAKE) --no-print-directory -j$$(nproc) B=build/fuzz SAN=address,undefined OPT="-O1 -g" fuzz-programs && \
	  for f in $(FUZZERS); do echo "$$f"; build/fuzz/tests/fuzz/$$f $$(($(FUZZ_S) * 2000)) || exit 1; done; \
	fi

BENCHES := $(patsubst tests/bench/%.c,%,$(wildcard tests/bench/bench_*.c))
$(B)/tests/bench/%: tests/bench/%.c $$(call links_of,tests/bench/$$*.c) | $(PB_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Wno-unused-parameter -MMD -MP -MF $@.d -MT $@ $(LDFLAGS_ALL) -o $@ $< -Wl,--start-group $(call links_of,$<) -Wl,--end-group $(LIBS_ALL)
bench-programs: $(BENCHES:%=$(B)/tests/bench/%)
# Parts by themselves, then a local cluster under load. Figures drift on a shared machine.
bench: all
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) bench-programs test-programs
	@mkdir -p $(B)/bench-data && $(B)/tests/bench/bench_wal $(B)/bench-data && rm -rf $(B)/bench-data
	@$(B)/tests/bench/bench_peer && $(B)/tests/bench/bench_amqp09
	@WARREN_BUILD=$(abspath $(B)) deploy/local-cluster up 3 && $(B)/warren-load --port 5672 --seconds 10; WARREN_BUILD=$(abspath $(B)) deploy/local-cluster down
