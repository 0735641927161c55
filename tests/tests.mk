# ---- simulator -----------------------------------------------------------------------------------------------
# make sim SEEDS=n [FIRST=s] [JOBS=j]; make sim SEED=s runs one again.
SEEDS ?= 200
# The world is an archive like any folder's, so that unit tests can use it ("links: ... tests/sim").
$(eval $(call archive_rule,tests/sim))
SIM_LIBS := $(B)/lib/tests-sim.a $(foreach d,node/base proto consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host,$(B)/lib/$(subst /,-,$(d)).a) $(B)/lib/gen.a

$(B)/sim: $(B)/obj/tests/sim/sim_main.o $(SIM_LIBS)
	$(CC) $(LDFLAGS_ALL) -o $@ $< -Wl,--start-group $(SIM_LIBS) -Wl,--end-group $(LIBS_ALL)

sim: deps $(B)/sim
ifdef SEED
	$(B)/sim --seed $(SEED) $(if $(V),--verbose)
else
	$(B)/sim --seeds $(SEEDS) $(if $(FIRST),--first $(FIRST)) $(if $(JOBS),--jobs $(JOBS))
endif


# ---- load ----------------------------------------------------------------------------------------------------
$(eval $(call archive_rule,tests/tools))
LOAD_LIBS := $(B)/lib/tests-tools.a $(foreach d,proto/amqp09 node/base,$(B)/lib/$(subst /,-,$(d)).a)
$(B)/warren-load: $(LOAD_LIBS)
	$(CC) $(LDFLAGS_ALL) -o $@ -Wl,--whole-archive $(B)/lib/tests-tools.a -Wl,--no-whole-archive $(LOAD_LIBS) $(LIBS_ALL)
test-programs: $(B)/warren-load
