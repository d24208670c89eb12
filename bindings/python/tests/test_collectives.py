"""Collectives on NumPy arrays: every type and operation, and what is in place where."""

from __future__ import annotations

import json

import pytest

from tests.workers import Workers

ALL_REDUCE = """
comm = xdp_agg.Communicator()
found = {}
floats, whole = ["float32", "float16", "float64"], ["int8", "uint8", "int16", "int32", "int64"]
for name in floats + whole:
    for op in ["sum", "mean", "min", "max"]:
        array = (np.arange(24).reshape(2, 3, 4) % 5 + rank).astype(name)
        report = comm.all_reduce(array, op)
        every = np.stack([(np.arange(24).reshape(2, 3, 4) % 5 + r) for r in range(world)])
        means = every.sum(0) / world if name in floats else every.sum(0) // world
        expected = {"sum": every.sum(0), "mean": means, "min": every.min(0),
                    "max": every.max(0)}[op].astype(name)
        assert (array == expected).all() and array.dtype == name, (name, op, array, expected)
        rounds = name in floats and op in ("sum", "mean")
        assert report.precision == ("exact" if rounds else None), (name, op, report)
        assert report.contributors == tuple(range(world)) and report.partial == ()
for op in ["and", "or", "min", "max", "sum"]:
    array = np.array([rank == 0, rank >= 0, False])
    comm.all_reduce(array, op)
    expected = [False, True, False] if op in ("and", "min") else [True, True, False]
    assert array.tolist() == expected, (op, array)
comm.close()
"""


def test_every_type_is_reduced_by_every_operation(workers: Workers) -> None:
    workers.start(ALL_REDUCE, 3).check()


def test_every_type_is_reduced_over_xdp(xdp_network: Workers) -> None:
    engine = "assert comm.engine.startswith('xdp'), comm.engine\n"
    script = ALL_REDUCE.replace("found = {}\n", engine)
    xdp_network.start(script, 3).check()


LEARNS = """
comm = xdp_agg.Communicator()
paths = set()
for call in range(70):
    array = np.arange(5000, dtype="float32") % 7 + rank
    if call % 3 == rank:
        report = comm.start(array, "sum", precision="gradient").wait()
    else:
        report = comm.all_reduce(array, "sum", precision="gradient")
    expected = (np.arange(5000) % 7) * world + world * (world - 1) / 2
    assert (array == expected).all(), call
    paths.add(report.path)
assert paths == {"aggregator", "ring"}, paths
learned = comm.learned()
assert [one["up_to"] for one in learned] == [32768], learned
assert {way for way, _ in learned[0]["times"]} >= {"aggregator", "exchange"}, learned
assert learned[0]["route"] in {way for way, _ in learned[0]["times"]}
comm.close()
"""


def test_sizes_learn_their_way(xdp_network: Workers) -> None:
    xdp_network.start(LEARNS, 3).check()


def test_others_than_all_reduce(workers: Workers) -> None:
    script = """
with xdp_agg.Communicator() as comm:
    for name in ["float32", "float16", "int64", "uint8", "bool"]:
        for root in range(world):
            array = (np.arange(10) + 7 * rank).astype(name)
            comm.broadcast(array, root)
            assert (array == (np.arange(10) + 7 * root).astype(name)).all(), (name, root, array)

    array = np.full((4, 5), rank + 1, "float32")
    comm.reduce(array, "sum", root=1)
    if rank == 1:
        assert (array == 6).all(), array

    array = np.arange(11, dtype="int32") * (rank + 1)
    part = comm.reduce_scatter(array, "sum")
    assert part == comm.part(11) == comm.part(11, rank), part
    assert (array[part] == np.arange(11)[part] * 6).all(), array
    parts = [comm.part(11, r) for r in range(world)]
    assert sorted(i for p in parts for i in range(11)[p]) == list(range(11)), parts

    array = np.zeros((5, 2))
    array.reshape(-1)[comm.part(10)] = rank + 1
    comm.all_gather(array)
    for r in range(world):
        assert (array.reshape(-1)[comm.part(10, r)] == r + 1).all(), array
    comm.barrier()
    assert isinstance(comm.barrier(deadline=5), xdp_agg.Report)
"""
    workers.start(script, 3).check()


@pytest.mark.parametrize("in_host", [False, True])
def test_empty_arrays_and_single_numbers(workers: Workers, in_host: bool) -> None:
    place = "local_rank=rank, local_size=world" if in_host else ""
    script = f"""
with xdp_agg.Communicator({place}) as comm:
    for kind in ["float32", "float64", "int32", "int64", "uint8", "bool"]:
        comm.all_reduce(np.zeros((0, 3), kind))
    comm.all_reduce(np.zeros(0, "float32"), "max")
    comm.start(np.zeros(0, "int32")).wait(20)
    comm.broadcast(np.zeros(0, "int8"))
    comm.all_gather(np.zeros(0))
    comm.reduce_scatter(np.zeros(0, "float16"))
    number = np.array(float(rank))
    comm.all_reduce(number)
    assert number.shape == () and number == 1, number
"""
    workers.start(script).check()


@pytest.mark.parametrize("in_host", [False, True])
def test_zeros_that_have_no_digits(workers: Workers, in_host: bool) -> None:
    # Exact sums are sums of digits. Of a vector of zeros there is none.
    place = "local_rank=rank, local_size=world" if in_host else ""
    script = f"""
with xdp_agg.Communicator({place}) as comm:
    for kind in ["float16", "float32", "float64"]:
        for length in [5, 552, 2000, 100_000]:
            for value in [0, 0, 3, 0, -0.0]:
                array = np.full(length, value, kind)
                comm.all_reduce(array, precision="exact")
                assert (array == value * world).all(), (kind, length, value)
                assert not np.signbit(array).any(), (kind, length, value)
"""
    workers.start(script).check()


def test_precision_of_a_call_and_of_a_communicator(workers: Workers) -> None:
    script = """
mixed = [2.3456789, 1.25e6, 0.0017]
with xdp_agg.Communicator() as comm:
    array = np.array(mixed, "float32")
    assert comm.all_reduce(array, "mean").precision == "exact"
    assert np.allclose(array, mixed, rtol=1e-6), array
    assert comm.all_reduce(array, "mean", precision="gradient").precision == "gradient"
    large = np.ones(100_000, "float32")
    assert comm.all_reduce(large).precision == "gradient"
    assert comm.all_reduce(large, precision="exact").precision == "exact"
    assert (large == world * world).all()
    stats = comm.stats()
    assert (stats["exact_calls"], stats["gradient_calls"]) == (2, 2), stats
    assert all(isinstance(value, (int, float)) for value in stats.values()), stats
with xdp_agg.Communicator(job=f"{comm.job}-all", precision="gradient") as other:
    assert other.all_reduce(np.ones(3)).precision == "gradient"
with xdp_agg.Communicator(job=f"{comm.job}-size", exact_up_to=8) as other:
    assert other.all_reduce(np.ones(2, "float32")).precision == "exact"
    assert other.all_reduce(np.ones(3, "float32")).precision == "gradient"
"""
    workers.start(script).check()


def test_infinities_and_nans_stay_with_their_element(workers: Workers) -> None:
    script = """
with xdp_agg.Communicator() as comm:
    array = np.ones(2000, "float32")
    array[3 + rank] = [np.inf, np.nan][rank]
    report = comm.all_reduce(array)
    assert np.isinf(array[3]) and np.isnan(array[4]), array[:6]
    assert (np.delete(array, [3, 4]) == world).all()
    assert comm.stats()["redone_elements"] == report.redone, report
"""
    workers.start(script).check()


def test_properties(workers: Workers) -> None:
    script = """
import json
comm = xdp_agg.Communicator(deadline=7)
names = ["rank", "world_size", "local_size", "job", "engine", "members", "deadline",
         "block_bytes", "result_mode", "strategy", "state"]
print(json.dumps({name: getattr(comm, name) for name in names}))
assert repr(comm).endswith(f"rank {rank} of 2>"), comm
comm.close()
assert comm.state == "closed" and "closed" in repr(comm)
comm.close()
"""
    for rank, out in enumerate(workers.start(script).check()):
        found = json.loads(out)
        assert found.pop("job").startswith("job-")
        assert found.pop("block_bytes") > 1000
        assert found == {
            "rank": rank,
            "world_size": 2,
            "local_size": 1,
            "engine": "userspace",
            "members": [0, 1],
            "deadline": 7.0,
            "result_mode": found["result_mode"],
            "strategy": "aggregators",
            "state": "running",
        }
