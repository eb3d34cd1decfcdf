"""Screenshots: known by their content, decoded within bounds, and written anew (A-381).

What is stored is what we encoded: nothing of the sender's bytes is left, no metadata, no second
format hidden in the first, and one frame.
"""

import io
import warnings
from dataclasses import dataclass

from PIL import Image, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "GIF", "WEBP")
MOST_PIXELS = 40_000_000
"""Pixels of an image at most: a screen of 8K has 33 million."""


class ImageRefused(ValueError):
    """No image that is taken; the message says why."""


@dataclass(frozen=True)
class Encoded:
    """An image as it is stored."""

    data: bytes
    format: str
    width: int
    height: int

    @property
    def suffix(self) -> str:
        """The end of its name."""
        return "jpg" if self.format == "JPEG" else self.format.lower()


def check_image(data: bytes, *, most_bytes: int, name: str = "The image") -> Encoded:
    """Return the image written anew; raises `ImageRefused` for another type or size, or none."""
    if len(data) > most_bytes:
        raise ImageRefused(f"{name} is larger than {most_bytes // 2**20} MB.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(data), formats=FORMATS) as image:
                if image.width * image.height > MOST_PIXELS:
                    raise ImageRefused(f"{name} has more than {MOST_PIXELS:,} pixels.")
                return _encode(image)
    except ImageRefused:
        raise
    except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise ImageRefused(f"{name} is no PNG, JPEG, GIF or WebP image.") from None
    except (OSError, ValueError, SyntaxError, EOFError, MemoryError):
        raise ImageRefused(f"{name} is broken: it cannot be read.") from None


def _encode(image: Image.Image) -> Encoded:
    """Write the first frame anew: a photograph as JPEG, everything else as PNG."""
    image.load()
    out = io.BytesIO()
    if image.format == "JPEG":
        image.convert("RGB").save(out, "JPEG", quality=90)
        return Encoded(out.getvalue(), "JPEG", image.width, image.height)
    has_alpha = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
    plain = Image.new("RGBA" if has_alpha else "RGB", image.size)
    plain.paste(image.convert(plain.mode))
    plain.save(out, "PNG")
    return Encoded(out.getvalue(), "PNG", image.width, image.height)
