"""What every test shares: the slow switch, and tests that no backend is part of."""

import pytest


def pytest_addoption(parser):
    """Add the switches."""
    parser.addoption("--slow", action="store_true", help="run the slow tests too")
    parser.addoption(
        "--backend-tests-only",
        action="store_true",
        help="leave out the tests that no Keras backend is part of",
    )


def pytest_collection_modifyitems(config, items):
    """Skip, and say why."""
    import keras

    for item in items:
        slow = item.get_closest_marker("slow")
        is_slow = slow and (not slow.args or keras.backend.backend() in slow.args)
        if is_slow and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if "backend_free" in item.keywords and config.getoption("--backend-tests-only"):
            item.add_marker(pytest.mark.skip(reason="no backend is part of it: run once already"))


def pytest_report_header():
    """Say which backend runs."""
    import keras

    return f"keras backend: {keras.backend.backend()}"


@pytest.fixture(autouse=True)
def example_names(doctest_namespace):
    """Let the examples in docstrings use Keras and the package's public names."""
    import keras

    from keras_bert_zoo import models, preprocessing

    doctest_namespace["keras"] = keras
    for room in (models, preprocessing):
        doctest_namespace.update({name: getattr(room, name) for name in room.__all__})
