"""The learning bench's exchange from Python, and its models of PyTorch (bench/learning/models.py)."""
import copy
import ctypes
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench/learning/models.py"
LIBRARY = pathlib.Path(os.environ["LONGHAUL_LIBRARY"]).parent / "liblonghaul_learning_exchange.so"
WORKERS, ELEMENTS = 4, 40_000  # 116 chunks


@pytest.fixture(scope="module")
def models():
    spec = importlib.util.spec_from_file_location("models", BENCH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def exchange(models):
    def start(initial, **scenario):
        return models.Exchange({"workers": WORKERS, "optimizer": "sgd:lr=1", "policy": "residual", **scenario}, initial, LIBRARY)

    return start


def normal(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_without_loss_it_is_sgd(exchange):
    """Half of the squared distance to a target of each worker's own, of two tensors; momentum as torch's."""
    start = [normal(ELEMENTS), normal(3, 5)]
    targets = [[normal(ELEMENTS, seed=rank + 2), normal(3, 5, seed=rank + 9)] for rank in range(WORKERS)]
    ours, theirs = exchange(start, optimizer="sgd:lr=0.3,momentum=0.9"), [t.clone().requires_grad_() for t in start]
    optimizer = torch.optim.SGD(theirs, lr=0.3, momentum=0.9)
    for _ in range(12):
        ours.round([[w - t for w, t in zip(ours.parameters(), own)] for own in targets])
        for parameter, *mine in zip(theirs, *targets):
            parameter.grad = torch.stack([parameter.detach() - t for t in mine]).mean(0)
        optimizer.step()
    for mine, other in zip(ours.parameters(), theirs):
        torch.testing.assert_close(mine, other.detach(), rtol=1e-4, atol=1e-5)


def owed_after(job, rounds):
    """What was pushed in 10 rounds and did not become part of the values until some rounds later, at most."""
    pushed = [[normal(ELEMENTS, seed=100 * n + rank) for rank in range(WORKERS)] for n in range(10)]
    for gradients in pushed:
        job.round([[g] for g in gradients])
    for _ in range(rounds):
        job.round([[torch.zeros(ELEMENTS)]] * WORKERS)
    wanted = -sum(sum(gradients) / WORKERS for gradients in pushed)
    return float((job.parameters()[0] - wanted).abs().max())


def test_what_is_lost_is_repaid_by_the_residual_and_by_nothing_else(exchange):
    settings = {"loss": 0.3, "uneven": False}
    zeros = [torch.zeros(ELEMENTS)]
    assert owed_after(exchange(zeros, **settings), 0) > 0.1
    residual = exchange(zeros, **settings)
    assert owed_after(residual, 80) < 1e-4
    assert owed_after(exchange(zeros, policy="zero", **settings), 80) > 0.1
    stats = residual.stats()
    assert 0.2 < stats["low_lost"] / stats["low_chunks"] < 0.4


@pytest.mark.parametrize("scenario, words", [
    ({"optimizer": "lbfgs"}, "lbfgs"), ({"rounds": -1}, "rounds"), ({"colour": 1}, "colour"), ({"policy": "hope"}, "policy"),
    ({"membership": "left"}, "membership"), ({"workers": 65}, "workers"), ({"loss": 0.9, "burst": 1.0}, "bursts")])
def test_a_wrong_scenario_is_named(exchange, scenario, words):
    with pytest.raises(ValueError, match=words):
        exchange([torch.zeros(4)], **scenario)


def test_a_wrong_gradient_is_named_and_changes_nothing(exchange):
    job = exchange([torch.zeros(4)])
    good = [[torch.ones(4)]] * WORKERS
    for bad in (torch.tensor([1.0, float("nan"), 1, 1]), torch.tensor([1.0, 1, float("inf"), 1]), torch.tensor([1.0, 1, 1, 1e19])):
        with pytest.raises(ValueError, match="rank 3 is not finite"):
            job.round(good[:3] + [[bad]])
    for bad in (good[:3], [[torch.ones(5)]] * WORKERS, [[torch.ones(4, dtype=torch.float64)]] * WORKERS, [[torch.ones(8)[::2]]] * WORKERS):
        with pytest.raises(ValueError):
            job.round(bad)
    assert job.parameters()[0].tolist() == [0] * 4
    job.round(good)
    assert job.parameters()[0].tolist() == [-1] * 4


def test_null_is_an_error(models, exchange):
    library = models._library(LIBRARY)
    error = lambda: library.longhaul_exchange_error().decode()  # noqa: E731
    counts, some = (ctypes.c_uint64 * 1)(4), models._addresses([torch.zeros(4)])
    job = exchange([torch.zeros(4)])
    for call, words in ((lambda: not library.longhaul_exchange_create(None, 1, counts, some), "scenario is null"),
                        (lambda: not library.longhaul_exchange_create(b"{", 1, counts, some), "not JSON"),
                        (lambda: not library.longhaul_exchange_create(b"{}", 0, counts, some), "tensors"),
                        (lambda: not library.longhaul_exchange_create(b"{}", 1, counts, (ctypes.c_void_p * 1)()), "tensor 0: null"),
                        (lambda: not library.longhaul_exchange_create(b"{}", 1, (ctypes.c_uint64 * 1)(0), some), "number of elements"),
                        (lambda: library.longhaul_exchange_round(job._handle, (ctypes.c_void_p * WORKERS)()), "rank 0, tensor 0: null"),
                        (lambda: library.longhaul_exchange_round(None, some), "no exchange"),
                        (lambda: library.longhaul_exchange_parameters(job._handle, 1, some, 4), "no tensor 1"),
                        (lambda: library.longhaul_exchange_parameters(job._handle, 0, some, 5), "of 5 elements"),
                        (lambda: library.longhaul_exchange_statistics(job._handle, None), "no memory")):
        assert call() and words in error(), error()
    library.longhaul_exchange_destroy(None)


def test_each_model_trains_and_layouts_differ_only_where_something_is_lost(models, monkeypatch):
    def outcome(**scenario):
        got = models.train({"rounds": 2, "workers": 3, "batch": 2, **scenario}, LIBRARY)
        return got["accuracy"], got["cross_entropy"]

    for name, (_, _, _, optimizers, _) in models.MODELS.items():
        monkeypatch.setattr(models.data_of(name), "test", tuple(part[:100] for part in models.data_of(name).test))
        for optimizer in optimizers:
            mine, other = (outcome(model=name, optimizer=optimizer, transposed=transposed) for transposed in (False, True))
            assert mine[0] >= 0 and mine[1] == pytest.approx(other[1], abs=1e-6)
    lossy = [outcome(model="conv", loss=0.5, burst=0.0, policy="zero", lost_energy=1.0, transposed=transposed) for transposed in (False, True)]
    assert lossy[0][1] != pytest.approx(lossy[1][1], abs=1e-5)


def test_local_steps_push_what_they_have_changed(models):
    """One worker, no loss, and an outer rate of 1: the values are those that its own steps came to."""
    scenario = {**models.DEFAULTS, "model": "conv", "every": 3, "workers": 1, "batch": 4, "optimizer": "sgd:lr=1"}
    torch.manual_seed(1)
    model = models.conv()
    before = [p.detach().clone() for p in model.parameters()]
    job = models.Exchange({"workers": 1, "optimizer": "sgd:lr=1"}, before, LIBRARY)
    steps = models.LocalSteps(scenario, model, [models.Batches(models.data_of("conv"), scenario, 0)], job.owed)
    job.round([steps.of(0, 0)])
    moved = 0
    for old, new, own in zip(before, job.parameters(), steps._own[0].parameters()):
        torch.testing.assert_close(new, own.detach(), rtol=0, atol=1e-6)
        moved = max(moved, float((new - old).abs().max()))
    assert 0.002 < moved < 0.004  # three steps of AdamW, each of at most its rate


def test_steps_that_overlap_a_round_stay_on_top_of_its_result(models):
    """One worker, no loss, and an outer rate of 1: rounds change nothing."""
    scenario = {**models.DEFAULTS, "model": "conv", "every": 3, "overlap": 2, "workers": 1, "batch": 4, "optimizer": "sgd:lr=1"}
    torch.manual_seed(1)
    model = models.conv()
    alone = copy.deepcopy(model)
    job = models.Exchange({"workers": 1, "optimizer": "sgd:lr=1"}, [p.detach() for p in model.parameters()], LIBRARY)
    steps = models.LocalSteps(scenario, model, [models.Batches(models.data_of("conv"), scenario, 0)], job.owed)
    for number in range(3):
        job.round([steps.of(0, number)])
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), job.parameters()):
                parameter.copy_(value)
    optimizer, batches = torch.optim.AdamW(alone.parameters(), lr=1e-3), models.Batches(models.data_of("conv"), scenario, 0)
    for _ in range(9):
        optimizer.zero_grad()
        models.loss_of(alone, batches.draw()).backward()
        optimizer.step()
    for mine, other in zip(model.parameters(), alone.parameters()):
        torch.testing.assert_close(mine.detach(), other.detach(), rtol=0, atol=1e-5)


def test_local_steps_begin_at_the_servers_less_what_is_owed(models):
    scenario = {**models.DEFAULTS, "model": "conv", "every": 0, "workers": 1, "batch": 4}
    model = models.conv()
    before = [p.detach().clone() for p in model.parameters()]
    job = models.Exchange({"workers": 1, "policy": "residual", "optimizer": "sgd:lr=1", "priority": "topk", "topk_share": 0.1}, before, LIBRARY)
    steps = models.LocalSteps(scenario, model, [models.Batches(models.data_of("conv"), scenario, 0)], job.owed)
    gradients = [torch.randn(p.shape) for p in before]
    job.round([gradients])
    owed = job.owed(0)
    for old, new, gradient, rest in zip(before, job.parameters(), gradients, owed):
        torch.testing.assert_close(old - new + rest, gradient, rtol=0, atol=1e-5)
    assert sum(int(rest.count_nonzero()) for rest in owed) > 0.8 * sum(rest.numel() for rest in owed)
    assert not any(step.any() for step in steps.of(0, 0))  # of no steps
    for parameter, own, rest in zip(model.parameters(), steps._own[0].parameters(), owed):
        torch.testing.assert_close(own.detach(), parameter.detach() - rest, rtol=0, atol=0)


def bench(*words, **environment):
    return subprocess.run([sys.executable, str(BENCH), "--library", str(LIBRARY), *words], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **environment})


def test_a_table_goes_on_where_it_was(tmp_path):
    out, only = tmp_path / "models.jsonl", '"loss": 0.[01],.*"model": "embedding", "optimizer": "adam.*"policy": "[rz].*"seed": 1,.*"transposed": false'
    words = ("--quick", "--out", str(out), "--only", only)
    first = bench(*words)
    assert first.returncode == 0 and "2 runs to do" in first.stderr, first.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(line["scenario"]["loss"], line["scenario"]["policy"]) for line in lines] == [(0, "zero"), (0.1, "residual")]
    assert lines[1]["low_lost"] > 0 and not lines[1]["diverged"]
    assert "0 runs to do" in bench(*words).stderr
    out.write_text(out.read_text() + "?\n")
    assert "line 3: not a result" in bench(*words).stderr


@pytest.fixture
def results():
    loader = importlib.machinery.SourceFileLoader("results", str(BENCH.parents[2] / "tools/results"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("results", loader))
    loader.exec_module(module)
    return module


def test_what_a_measurement_has_not_reached_is_named(tmp_path, results):
    assert results.self_test() == 0
    assert results.less_accurate(tmp_path) == [] == results.less_accurate(results.ROOT)
    (tmp_path / "docs/results").mkdir(parents=True)
    for runs, problem in (
            ([("gloo", 1, 0.8), ("gloo", 2, 0.8), ("longhaul", 1, 0.79), ("longhaul", 2, 0.9)], "with seed 1 longhaul is 1.00 points less"),
            ([("longhaul", 1, 0.8)], "gloo")):
        (tmp_path / "docs/results/accuracy_conv.json").write_text(json.dumps(
            {"result": [{"runs": [{"runner": r, "seed": s, "accuracy": a}]} for r, s, a in runs]}))
        problems = results.less_accurate(tmp_path)
        assert len(problems) == 1 and problem in problems[0], problems


def test_the_worst_cells_come_first(tmp_path, monkeypatch, results):
    """By mean and interval of differences to the lossless runs of the same seeds."""
    scenario = {"model": "conv", "every": 0, "optimizer": "sgd:lr=1", "rounds": 7, "policy": "residual", "loss": 0.3, "lost_energy": 0.15,
                "transposed": False, "burst": 10.0, "uneven": True}

    def run(seed, accuracy, cross_entropy, **changed):
        return {"scenario": {**scenario, **changed, "seed": seed}, "accuracy": accuracy, "cross_entropy": cross_entropy, "diverged": False,
                "high_share": 0.2, "seconds": 1}

    runs = [run(seed, seed / 4, 0.5, policy="zero", loss=0.0, lost_energy=1.0, optimizer=optimizer)
            for seed in (1, 2) for optimizer in ("sgd:lr=1", "adam:lr=1")]
    runs += [run(seed, seed / 4 - 2**-14, 0.5 + 2**-13) for seed in (1, 2)]  # nearly the same
    runs += [run(seed, seed / 4, 0.5 + (seed - 1.5) * 2**-10, transposed=True) for seed in (1, 2)]  # on average the same
    runs += [run(1, 0.25, 0.5 + 2**-6, optimizer="adam:lr=1")]
    (tmp_path / "docs/results/learning").mkdir(parents=True)
    (tmp_path / "docs/results/learning/models.jsonl").write_text("".join(json.dumps(line) + "\n" for line in runs))
    monkeypatch.setattr(results, "ROOT", tmp_path)
    assert results.models()[2:] == [
        "| fails | conv net | adam | 7 | 30 % | [out][in] | +0.00 | +0.0156 | 0.3 | 20 % | 1 |",
        "| not shown | conv net | sgd | 7 | 30 % | [in][out] | +0.00 ± 0.00 | +0.0000 ± 0.0062 | 0.3 | 20 % | 2 |",
        "| within | conv net | sgd | 7 | 30 % | [out][in] | -0.01 ± 0.00 | +0.0001 ± 0.0000 | 0.3 | 20 % | 2 |"]


def test_without_torch_it_says_what_is_missing(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('No module named torch')")
    done = bench("--list", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1 and "No module named torch; `tools/dev setup torch`" in done.stderr, done.stderr
