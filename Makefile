# Thin on purpose: the logic is in xtask/ (`cargo xtask help`).
.PHONY: help run test check lab fuzz sim
.DEFAULT_GOAL := help

help:   ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

run:    ## build the server (release) and start it on the embedded default
	cargo run --release --package trapezoid -- serve $(ARGS)

test:   ## install what the tests need, run every test
	cargo xtask test

check:  ## formatting, lints, tidiness, dependency policy, documentation
	cargo xtask check

lab:    ## an experiment of docs/lab.md (ARGS=transport, overload, batching, peers, connections, memory, workers, split, pings, all)
	cargo run --release --package trapezoid -- lab $(ARGS)

sim:    ## simulate networks under faults (SEEDS=FROM..TO, MINUTES=N, SEED=N, OVERLOAD=1)
	@cargo xtask sim

fuzz:   ## fuzz every target for an hour (fuzz/README.md; ARGS='--total N', '--runs N', …)
	cargo xtask fuzz $(ARGS)
