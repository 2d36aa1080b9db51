"""How the pages are built: `make docs`.

Docstrings are in Google's style ("Args:", "Returns:"), which napoleon reads; numpydoc reads another one.
Nothing here needs torch, JAX, onnx or a GPU: of the first three what is missing is imitated while docstrings
are read.
"""

import doctest
import gc
import os
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

gc.set_threshold(200_000, 20, 100)  # pages stay: a quarter of the time went to looking for cycles among them
DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS / "_ext"), str(DOCS.parent)]
_wisdom = tempfile.TemporaryDirectory(prefix="convalgos-docs-")
os.environ["CONVALGOS_WISDOM"] = _wisdom.name  # what examples measure decides nothing later

import imitated  # noqa: E402, F401

from convalgos import __version__  # noqa: E402

project = "convalgos"
author = "convalgos contributors"
copyright = "the convalgos contributors, under the MIT license"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.doctest",
    "sphinx_copybutton",
    "plain_docstrings",
    "python_examples",
    "glossary_list",
    "curves",
]
exclude_patterns = ["_build", "_data", "_tools", "examples", "results"]

# Markdown
myst_heading_anchors = 3

# Docstrings
autodoc_mock_imports = [name for name in ("torch", "onnx", "jax") if find_spec(name) is None]
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_numpy_docstring = False
python_maximum_signature_line_length = 88
smartquotes_action = "D"  # dashes only: docstrings quote code
default_role = "py:obj"  # `name` in a docstring is a link where there is such a page

# References: a name in a docstring, or a type in a signature, may be one that has no page. Links in the pages
# name what is directly in convalgos, and are all checked.
nitpicky = True
nitpick_ignore_regex = [("py:obj", ".*"), ("py:(class|exc)", r"(?!convalgos\.\w+$).*")]
linkcheck_timeout = 20

# Examples
doctest_test_doctest_blocks = "default"
doctest_default_flags = doctest.ELLIPSIS | doctest.DONT_ACCEPT_TRUE_FOR_1
doctest_global_setup = """
import os, tempfile
import numpy as np
import convalgos as ca
try:
    import torch
except ImportError:
    torch = None
try:
    import jax
except ImportError:
    jax = None
try:
    import skimage
except ImportError:
    skimage = None
try:
    import xarray
except ImportError:
    xarray = None
_home, _folder = os.getcwd(), tempfile.TemporaryDirectory(prefix="convalgos-example-")
os.chdir(_folder.name)
rng = np.random.default_rng(0)
"""
doctest_global_cleanup = "os.chdir(_home); _folder.cleanup()"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# Pages
html_theme = "furo"
html_title = f"convalgos {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = False
