import pytest
from django.core.exceptions import ImproperlyConfigured
from hypothesis import given, strategies as st

from config.environment import checked_colour
from kb.assistants.chat.colours import DARK, LEAST_CONTRAST, LIGHT, contrast, ink_on, readable

COLOURS = st.integers(0, 0xFFFFFF).map("#{:06x}".format)


def test_contrast_is_that_of_the_standard():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)


@given(COLOURS)
def test_text_on_and_in_every_colour_can_be_read(colour):
    assert contrast(ink_on(colour), colour) >= LEAST_CONTRAST
    for back in (LIGHT, DARK):
        assert contrast(readable(colour, on=back), back) >= LEAST_CONTRAST


def test_a_colour_that_can_be_read_stays_as_it_is():
    assert readable("#5b21b6", on=LIGHT) == "#5b21b6"


@pytest.mark.parametrize("text", ["", "red", "#fff", "#12345g", "#7c3aed; }"])
def test_what_is_no_colour_stops_the_start(text):
    with pytest.raises(ImproperlyConfigured, match="SITE_COLOR"):
        checked_colour(text)
