"""The study of workers: its simulated cluster is that of the plans, scaled to what one worker measured."""

import pytest

pytest.importorskip("distributed", reason="needs Dask (pip install 'convalgos[dask]')")

from convalgos.studies import cluster
from convalgos.studies.large_image import LargeImage
from convalgos.studies.study import Finding, Part, StudySetting


def test_the_simulated_cluster_stands_beside_what_was_measured(monkeypatch):
    """Efficiency begins at 1, by what one worker took, and ends low; each row adds up."""
    study = cluster.ClusterStudy()
    monkeypatch.setattr(cluster.ClusterStudy, "problems", {"a layer": "n8 c4 h12 w12 k4 r3 s3 p1"})
    monkeypatch.setattr(cluster.ClusterStudy, "simulated", (1, 2, 8, 1024))
    monkeypatch.setattr(cluster.ClusterStudy, "rounds", 1)
    monkeypatch.setattr(cluster.ClusterStudy, "large", LargeImage(3, 226, share=1e4))
    figures, table, *others = study.parts(StudySetting())
    *others, large, times = others
    assert large.values("limit")[0] > large.values("peak")[0] > large.values("image")[0] > 1
    assert float(large.values("error")[0]) < 1e-5 and times.holds is False
    assert all(value > 0 for value in figures.values("ms"))
    predicted = table.values("efficiency predicted")
    assert isinstance(table, Part) and predicted[0] == pytest.approx(1)
    assert predicted[-1] < min(predicted[:-1])
    for row in table.rows:
        compute, exchange, tasks, in_all = row[2:6]
        assert in_all == pytest.approx(max(compute + exchange, tasks))
    measured = table.values("measured")
    assert all(measured[:2]) and measured[2:] == [None, None]
    assert table.values("efficiency measured")[0] == pytest.approx(1)
    assert all(isinstance(other, Finding) for other in others)
