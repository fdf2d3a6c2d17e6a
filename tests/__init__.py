import pytest

pytest.register_assert_rewrite("tests")  # so that what tests share says what it found, too
