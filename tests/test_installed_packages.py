"""Installed packages are found as `importlib.metadata` finds them."""

import sys
import zipfile
from importlib import metadata
from importlib.machinery import PathFinder
from pathlib import Path

import pytest

from convalgos.core.installed_packages import info_folders
from convalgos.cpu.runtime import mkl


@pytest.fixture(autouse=True)
def folders_alone(monkeypatch):
    """Without `importlib_metadata`, which takes the place of the finder of the standard library."""
    finders = [f for f in sys.meta_path if f is PathFinder or not hasattr(f, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", finders)
    own = metadata.MetadataPathFinder.find_distributions
    monkeypatch.setattr(PathFinder, "find_distributions", own, raising=False)


def test_folders_are_those_of_importlib():
    found = info_folders()
    assert found is not None
    assert {str(folder) for folder in found} == {str(d._path) for d in metadata.distributions()}


def test_packages_in_archives_are_left_to_importlib(tmp_path, monkeypatch):
    zipfile.ZipFile(archive := tmp_path / "packages.zip", "w").close()
    monkeypatch.setattr(sys, "path", [*sys.path, str(archive)])
    assert info_folders() is None


def test_the_library_of_a_package_is_that_of_importlib(monkeypatch):
    found = mkl._candidates.__wrapped__()
    monkeypatch.setattr(mkl, "info_folders", lambda: None)
    assert found == mkl._candidates.__wrapped__()


def test_a_library_is_listed_by_its_package(tmp_path, monkeypatch):
    folder = tmp_path / "lib" / "site" / "mkl-2025.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("../libmkl_rt.so.2,sha256=a,1\n../libmkl_core.so.2,,\nmkl/x.py,,\n")
    monkeypatch.setattr(sys, "path", [str(folder.parent)])
    assert mkl._candidates.__wrapped__() == (Path(tmp_path, "lib", "libmkl_rt.so.2"),)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert mkl._candidates.__wrapped__() == ()
