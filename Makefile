# Warren's one build file. Targets are listed in README.md.
#
# Every folder with C files becomes one archive; programs and tests link the archives they need. A unit test
# says which on a line of its own: "// links: node/base proto" (transitive archives must be named too, leaf last
# or first does not matter: they are linked as one group).
#
#   make [B=build/NAME] [SAN=address,undefined|thread]   B is the output folder, so that builds can live side by side

B       ?= build
CC      ?= cc
OPT     ?= -O2 -g
SAN     ?=
WARN    := -Wall -Wextra -Wshadow -Wconversion -Wvla -Wno-sign-conversion -Werror
PKGS    := libuv libprotobuf-c lmdb openssl libpcre2-8 jansson
PACKAGES := gcc make pkg-config libuv1-dev libprotobuf-c-dev protobuf-c-compiler protobuf-compiler liblmdb-dev libssl-dev check \
	libpcre2-dev libjansson-dev libmicrohttpd-dev python3 amqp-tools python3-pika iproute2 iptables curl strace

# Folders under src control, in dependency order (design.md: node/base <- proto <- consensus <- metastore <- node).
DIRS    := node/base proto proto/amqp09 consensus consensus/raft consensus/solo consensus/wal consensus/store consensus/host consensus/peer \
	metastore node/alarm node/broker node/queue node/amqp09 node/ctl node/server
SRCS    := $(foreach d,$(DIRS),$(filter-out %/main.c %/warrenctl.c,$(wildcard $(d)/*.c)))
PROTOS  := $(wildcard proto/*.proto)
PB_C    := $(PROTOS:proto/%.proto=$(B)/gen/proto/%.pb-c.c)
PB_O    := $(PB_C:.c=.o)

HAVE_PKGS := $(shell pkg-config --exists $(PKGS) check 2>/dev/null && command -v protoc-c >/dev/null && echo yes)
PKG_CFLAGS := $(shell pkg-config --cflags $(PKGS))
PKG_LIBS   := $(shell pkg-config --libs $(PKGS))
CHECK_LIBS := $(shell pkg-config --libs check)

# Flow-based warnings are unreliable in instrumented code (GCC manual, -fsanitize); the ordinary build has them as errors.
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-format-truncation -Wno-maybe-uninitialized)
CFLAGS_ALL = -std=gnu17 $(OPT) $(WARN) -fno-strict-aliasing $(SANFLAGS) -I. -I$(B)/gen $(PKG_CFLAGS) -pthread -D_GNU_SOURCE $(CFLAGS)
LDFLAGS_ALL = $(SANFLAGS) -pthread $(LDFLAGS)
LIBS_ALL = $(PKG_LIBS) -lm

ARCHIVES := $(foreach d,$(DIRS),$(if $(wildcard $(d)/*.c),$(B)/lib/$(subst /,-,$(d)).a))
UNIT_SRC := $(wildcard tests/unit/*/test_*.c)
UNIT_BIN := $(UNIT_SRC:%.c=$(B)/%)

.DEFAULT_GOAL := all
.PHONY: all programs unit-programs test-programs sanitized deps cluster cluster-stop test unit sim sim-faults asan tsan fuzz bench clean format tidy

all: deps
	@$(MAKE) --no-print-directory B=$(B) SAN=$(SAN) programs

programs: $(B)/warren $(B)/warrenctl

deps:
ifneq ($(HAVE_PKGS),yes)
	@echo "installing Debian packages: $(PACKAGES)"
	@SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); $$SUDO apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq --no-install-recommends $(PACKAGES) >/dev/null
# Only the tests' JavaScript client needs it, and another build of Node.js may be there already.
	@command -v npm >/dev/null || { SUDO=$$([ "$$(id -u)" = 0 ] || echo sudo); \
	  DEBIAN_FRONTEND=noninteractive $$SUDO apt-get install -y -qq --no-install-recommends nodejs npm >/dev/null || true; }
endif

TSAN_O := $(if $(filter thread,$(SAN)),$(B)/obj/tests/tsan_syscall.o)
$(B)/warren: $(B)/obj/node/server/main.o $(TSAN_O) $(ARCHIVES) $(B)/lib/gen.a
	$(CC) $(LDFLAGS_ALL) -o $@ $(filter %.o,$^) -Wl,--start-group $(ARCHIVES) $(B)/lib/gen.a -Wl,--end-group $(LIBS_ALL)
$(B)/warrenctl: $(B)/obj/node/ctl/warrenctl.o $(ARCHIVES) $(B)/lib/gen.a
	$(CC) $(LDFLAGS_ALL) -o $@ $< -Wl,--start-group $(ARCHIVES) $(B)/lib/gen.a -Wl,--end-group $(LIBS_ALL)

# One archive per folder. Recreated whole, so that a removed file leaves it.
define archive_rule
$(B)/lib/$(subst /,-,$(1)).a: $(patsubst %.c,$(B)/obj/%.o,$(filter-out %/main.c %/warrenctl.c,$(wildcard $(1)/*.c)))
	@mkdir -p $$(@D); rm -f $$@; ar rcs $$@ $$^
endef
$(foreach d,$(DIRS),$(eval $(call archive_rule,$(d))))
$(B)/lib/gen.a: $(PB_O)
	@mkdir -p $(@D); rm -f $@; ar rcs $@ $^

# Generated protobuf code: never committed, compiled without our warnings.
$(B)/gen/proto/%.pb-c.c $(B)/gen/proto/%.pb-c.h: proto/%.proto
	@mkdir -p $(B)/gen/proto
	protoc-c --c_out=$(B)/gen $<
$(B)/gen/proto/%.pb-c.o: $(B)/gen/proto/%.pb-c.c
	$(CC) -std=gnu17 $(OPT) -w $(SANFLAGS) -I$(B)/gen $(PKG_CFLAGS) -c -o $@ $<
PB_H := $(PB_C:.c=.h)
.SECONDARY: $(PB_C) $(PB_H) $(PB_O)

$(B)/obj/%.o: %.c | $(PB_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -MMD -MP -c -o $@ $<

# ---- tests -------------------------------------------------------------------------------------------------
# A unit test binary: the archives its "// links:" line names, and Check.
links_of = $(foreach d,$(shell sed -n 's|^// links: *||p' $(1) | head -1),$(B)/lib/$(subst /,-,$(d)).a)
.SECONDEXPANSION:
$(B)/tests/unit/%: tests/unit/%.c $$(call links_of,tests/unit/$$*.c) | $(PB_H)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS_ALL) -Wno-unused-parameter -MMD -MP -MF $@.d -MT $@ $(LDFLAGS_ALL) -o $@ $< -Wl,--start-group $(call links_of,$<) -Wl,--end-group $(LIBS_ALL) $(CHECK_LIBS)

unit-programs: $(UNIT_BIN)
unit: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) unit-programs
	@tests/run --build $(B) unit

# All tests. Ends with `N passed, N failed, N skipped`.
test: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) programs unit-programs test-programs
	@tests/run --build $(B)

# One command from nothing to a running cluster.
cluster: all
	@deploy/local-cluster up 3
	@deploy/local-cluster status
	@echo; echo "Connect with amqp://guest:guest@127.0.0.1:5672 (n1), 5673 (n2), 5674 (n3). Stop it with: make cluster-stop"
cluster-stop:
	@deploy/local-cluster down

asan:
	@$(MAKE) --no-print-directory B=build/asan SAN=address,undefined OPT="-O1 -g" sanitized
tsan:
	@$(MAKE) --no-print-directory B=build/tsan SAN=thread OPT="-O1 -g" sanitized
sanitized: deps
	@$(MAKE) --no-print-directory -j$$(nproc) B=$(B) SAN=$(SAN) OPT="$(OPT)" programs unit-programs test-programs
	@tests/run --build $(B)

-include tests/tests.mk

# House rules that need no compiler: includes, the injected world, licences, READMEs.
tidy:
	@tests/tidy/test_tidy

clean:
	rm -rf $(B)
format:
	clang-format -i $$(git ls-files '*.c' '*.h')

-include $(shell find $(B)/obj $(B)/tests -name '*.d' 2>/dev/null)
