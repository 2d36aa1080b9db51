"""Many random networks, float32 and quantised, of ONNX and of torch, in layouts and by algorithms of chance.

    python tests/network_fuzz.py --networks 10000 --seed 0 --out networks.json

A network is read, planned in some ways by chance (random_picks.py), and run for several sizes, back and
forth, saved and loaded, and by several threads: against ONNX Runtime, torch, and the reference. Each batch is
a process with caches and threads of its own (random_layers.py), so that a crash is a failure of the network
that it was at. The record is complete after every batch, and a run with the same seed goes on where it ended.
`--network NUMBER` checks one, and prints its failures with what computed each step.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fuzz
from random_layers import assume_caches, lines_of, surrounding

FORMAT = 1
NETWORKS = 20  # of a batch
WAYS = 2  # in which each is planned
KINDS = ("float32", "quantised", "float32", "quantised", "torch")  # by turns


def kind_of(number: int) -> str:
    kind = KINDS[number % len(KINDS)]
    return "float32" if kind == "torch" and importlib.util.find_spec("torch") is None else kind


def checks_of(seed: int, number: int, ways: int = WAYS) -> Iterator[tuple[str, str | None, dict[str, str]]]:
    """(what was checked, what was wrong or None, what computed each step) of a network."""
    name, kind = f"{seed} {number}", kind_of(number)
    if kind == "torch":
        from module_checks import check_module

        return check_module(name, ways, compiles=number % 3 == 0)
    from network_checks import check_network

    return check_network(name, kind == "quantised", ways)


def run_batch(seed: int, batch: int, networks: int, timeout: float = 3600) -> dict:
    """What a batch found, in a process of its own: checks, picks, failures, and the seconds that it took."""
    begin = time.perf_counter()
    checks, ran, picks, failures, last = 0, 0, Counter(), [], {}
    told, ended = lines_of([__file__, "--process", *map(str, (seed, batch, networks))], batch, timeout)
    for line in told:
        last = line.get("at", last)
        checks += line.get("checks", 0)
        ran += line.get("ran", 0)
        picks += Counter(line.get("picks", {}))
        failures += line.get("failures", [])
    if ended:
        failures.append({**last, "what": ended})
    for failure in failures:
        failure |= {"seed": seed, "batch": batch}
    seconds = time.perf_counter() - begin
    return {"networks": ran, "checks": checks, "picks": picks, "failures": failures, "seconds": seconds}


def process(seed: int, batch: int, networks: int) -> None:
    """A batch: a line of JSON before each network, and one of results after it."""
    import logging
    import warnings

    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    assume_caches(surrounding(batch)[1])
    for number in range(batch * networks, (batch + 1) * networks):
        told = {"network": number, "kind": kind_of(number)}
        print(json.dumps({"at": told}), flush=True)
        checks, picks, failures = 0, Counter(), []
        for what, wrong, picked in checks_of(seed, number):
            if what == "no model":
                continue
            checks += 1
            picks.update(pick.split(" ", 1)[1] for pick in picked.values())
            if wrong:
                failures.append(told | {"check": what, "what": wrong})
        found = {"checks": checks, "ran": bool(checks), "picks": picks, "failures": failures[:3]}
        print(json.dumps(found), flush=True)


def add(record: dict, found: dict) -> None:
    """The results of one more batch."""
    for name in ("networks", "checks", "failures"):
        record[name] += found[name]
    record["picks"] = dict(sorted((Counter(record["picks"]) + Counter(found["picks"])).items()))
    record["seconds"] = round(record["seconds"] + found["seconds"], 1)
    record["batches"] += 1


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", type=int, default=1000, help="how many in all, those of the record too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the record; one that is there is gone on with")
    parser.add_argument("--jobs", type=int, default=1, help="batches that run at a time")
    parser.add_argument("--network", type=int, help="check only this one, and print its failures")
    parser.add_argument("--process", type=int, nargs=3, help=argparse.SUPPRESS)  # seed, batch, networks
    given = parser.parse_args(arguments)
    if given.process:
        process(*given.process)
        return 0
    if given.network is not None:
        assume_caches(surrounding(given.network // NETWORKS)[1])
        failed = [found for found in checks_of(given.seed, given.network) if found[1]]
        for what, wrong, picks in failed:
            print(f"{what}: {wrong}", *(f"    {y}: {pick}" for y, pick in picks.items()), sep="\n")
        return bool(failed)
    told = {"format": FORMAT, "seed": given.seed, "networks_of_a_batch": NETWORKS}
    empty = {"networks": 0, "checks": 0, "seconds": 0.0, "batches": 0, "picks": {}, "failures": []}
    record = fuzz.known_record(given.out, told) or {**told, **fuzz.here(), **empty}
    if "differs" in record:
        print(record["differs"], file=sys.stderr)
        return 2
    run = fuzz.Run("networks", given.networks, given.jobs, given.out, add)
    run(record, lambda batch: run_batch(given.seed, batch, NETWORKS))
    return bool(record["failures"])


if __name__ == "__main__":
    sys.exit(main())
