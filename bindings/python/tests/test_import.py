"""The package is there, and whole."""

import importlib.metadata
import importlib.resources
import re

import xdp_agg


def test_version_is_that_of_the_extension() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", xdp_agg.__version__)
    assert importlib.metadata.version("xdp-agg") == xdp_agg.__version__


def test_types_are_shipped() -> None:
    assert importlib.resources.files(xdp_agg).joinpath("py.typed").is_file()


def test_torch_finds_the_backend_by_its_entry_point() -> None:
    (point,) = importlib.metadata.entry_points(group="torch.distributed.backends", name="xdp-agg")
    assert point.value == "xdp_agg.torch:register"
