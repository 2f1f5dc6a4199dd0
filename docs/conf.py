"""Sphinx configuration."""

import logging
import sys
from importlib.metadata import files
from pathlib import Path

from sphinx.ext.napoleon import NumpyDocstring

import epfast

sys.path.insert(0, str(Path(__file__).parent))
logging.getLogger("epfast").setLevel("WARNING")  # else the theme prints each sweep of the gallery

from families import class_of, inherited, sections  # noqa: E402  (beside this file)

project = "epfast"
author = "the epfast developers"
copyright = "2026, the epfast developers"
version = release = epfast.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "accessible",  # accessible.py and results.py are beside this file
    "results",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

autosummary_generate = True
autosummary_context = {"class_of": class_of, "inherited": inherited, "sections": sections}
autodoc_mock_imports = ["GPy"]  # epfast.gpy is documented where GPy is not installed
autodoc_typehints = "none"  # the docstrings give the types, shorter
autodoc_member_order = "bysource"
napoleon_google_docstring = False
# types of parameters are prose, such as "array_like of shape (n,)", and no references
napoleon_use_param = False
napoleon_use_rtype = False
NumpyDocstring._consume_inline_attribute = lambda self: ("", list(self._consume_to_end()))
napoleon_custom_sections = [("Attributes", "params_style")]
strip_signature_backslash = True  # else napoleon drops the underscore of coef_
default_role = "code"

html_theme = "furo"
html_title = f"epfast {release}"
html_css_files = ["epfast.css"]
# formulas without a network: MathJax, with its fonts, in one file
(mathjax,) = (f for f in files("sphinx-mathjax-offline") or () if f.name == "tex-svg.js")
html_static_path = ["_static", str(mathjax.locate())]
mathjax_path = mathjax.name
html_split_index = True  # pages that open fast

# every reference to a name of epfast leads somewhere; those to other packages need a network
nitpicky = True
nitpick_ignore_regex = [
    (r"py:.*", r"(numpy|scipy|sklearn|dask|GPy|pandas|arviz|xarray|matplotlib)\..*")
]

# docstrings that scikit-learn writes into its estimators refer to its own glossary; the name of a
# parameter, such as y, may be that of several attributes; the function that templates call is not
# kept from build to build
suppress_warnings = ["ref.term", "ref.ref", "ref.python", "config.cache"]

# programs of the gallery, which run while the pages are built
sphinx_gallery_conf = {
    "examples_dirs": ["../examples"],
    "gallery_dirs": ["auto_examples"],
    # all run but those whose data do not come along; the landing page's picture is no program of it
    "filename_pattern": r"/(?!football)\w+\.py$",
    "ignore_pattern": r"landing\.py$",
    "reset_modules": ("pictures.reset",),  # pictures.py beside this file
    "reset_modules_order": "before",
    "capture_repr": (),
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "remove_config_comments": True,
    "backreferences_dir": None,
}
