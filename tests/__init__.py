import sys

# Assertions in shared test helpers then report their values. Worker processes do not need this.
if "pytest" in sys.modules:
    import pytest

    pytest.register_assert_rewrite("tests.data", "tests.drills", "tests.features", "tests.support")
