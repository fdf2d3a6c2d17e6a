"""The fake server and the project of tests/kernels serve these tests as well."""

from tests.kernels.conftest import (  # noqa: F401
    fake_kaggle,
    folder,
    no_credentials,
    policy,
    project,
    push,
    waits,
)
