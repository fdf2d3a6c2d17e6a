import pytest

# So that what tests share says what it found, too.
pytest.register_assert_rewrite("tests.data", "tests.drills", "tests.features", "tests.support")
