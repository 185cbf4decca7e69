"""The graphs of language models, as in the tests of passes."""

from ...passes.conftest import variant  # noqa: F401
