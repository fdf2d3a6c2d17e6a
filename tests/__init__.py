import sys

# So that what tests share says what it found, too; workers that tests start have no use for it.
if "pytest" in sys.modules:
    import pytest

    pytest.register_assert_rewrite("tests.data", "tests.drills", "tests.features", "tests.support")
