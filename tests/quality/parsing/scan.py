"""A PDF as a scanner would make it again: pictures of its pages, clean or noisy and askew, with or without the text below."""

import io
from pathlib import Path

import numpy as np
import pypdfium2
from PIL import Image, ImageFilter

DPI = 150
_NOISE, _BLUR, _ANGLE, _QUALITY = 14.0, 0.6, 0.6, 60


def scanned(source: Path, target: Path, kind: str) -> None:
    """`kind` is as in `cases.Case`; the noise is the same at every run."""
    chance = np.random.default_rng(sum(source.name.encode()))
    with pypdfium2.PdfDocument(source) as document, pypdfium2.PdfDocument.new() as pictures:
        made = document if kind == "layered" else pictures
        for page in list(document):
            picture = page.render(scale=DPI / 72).to_pil().convert("L")
            if kind != "clean":
                picture = _worn(picture, chance)
            # Over the page itself its text stays below the picture, as text recognition leaves it.
            new = page if kind == "layered" else pictures.new_page(*page.get_size())
            _place(made, new, picture)
            new.gen_content()
        made.save(target)


def _worn(picture: Image.Image, chance: np.random.Generator) -> Image.Image:
    turned = picture.rotate(float(chance.uniform(-_ANGLE, _ANGLE)), fillcolor=255, resample=Image.Resampling.BICUBIC)
    grey = np.asarray(turned.filter(ImageFilter.GaussianBlur(_BLUR)), dtype=np.float32)
    noisy = np.clip(grey + chance.normal(0, _NOISE, grey.shape), 0, 255).astype(np.uint8)
    return Image.fromarray(noisy)


def _place(document, page, picture: Image.Image) -> None:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "JPEG", quality=_QUALITY)
    buffer.seek(0)
    image = pypdfium2.PdfImage.new(document)
    image.load_jpeg(buffer, inline=True)
    image.set_matrix(pypdfium2.PdfMatrix().scale(*page.get_size()))
    page.insert_obj(image)
