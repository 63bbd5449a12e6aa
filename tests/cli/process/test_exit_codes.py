import pytest

from mqbridge import errors
from mqbridge.cli.process import exit_codes
from mqbridge.cli.process.exit_codes import exit_code
from mqbridge.errors import Failure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.Unreachable("x"), 3),
        (errors.ConnectionLost("x"), 3),
        (errors.RequestTimeout("x"), 3),
        (errors.ServerRefused("x", 7, Failure.FATAL), 3),
        (errors.RemoteProtocolError("x"), 3),
        (errors.LocalProtocolError("x"), 1),
        (errors.GapError("x"), 4),
        (errors.DeliveryError("x"), 4),
        (errors.MappingError("x"), 4),
        (ZeroDivisionError("x"), 1),
    ],
)
def test_every_error_has_its_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_the_help_lists_every_exit_code() -> None:
    codes = (
        exit_codes.OK,
        exit_codes.UNEXPECTED,
        exit_codes.USAGE,
        exit_codes.CLUSTER,
        exit_codes.STOPPED,
        exit_codes.INTERRUPTED,
    )
    assert codes == (0, 1, 2, 3, 4, 130)
    assert all(f"{code} " in exit_codes.HELP for code in codes)
