"""How the documentation is built; needs no network and no more than the extra ``docs``."""

from __future__ import annotations

from pulsar_nack import __version__

project = "pulsar-nack"
copyright = "the pulsar-nack contributors"
version = release = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_mock_imports = ["numpy", "pandas", "pyarrow", "pyspark"]  # the pipeline is documented without them
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 80
add_module_names = False
suppress_warnings = ["ref.python"]  # the type ``bytes`` in a signature, where attributes of that name exist too

html_theme = "furo"
html_title = f"pulsar-nack {version}"
html_static_path = ["_static"]
html_copy_source = False
