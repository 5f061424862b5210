"""Takes `docs/playground.png`: the page of a server of this checkout, after two turns. `make picture` calls it.

It needs Chromium, as the page's tests do. The recipe is the synthetic one, slowed down as a model would be.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image, ImageDraw

from tests.server.chromium import chromium
from tests.server.serving import serving
from tests.server.test_reports_load import INCREMENTAL

SLOW = ("synthetic.delay_ms.thinker=60", "synthetic.delay_ms.talker=20", "synthetic.delay_ms.code2wav=4")
SIZE = {"width": 900, "height": 1030, "deviceScaleFactor": 1, "mobile": False}


def photo(path: Path) -> None:
    """A sun over the sea."""
    image = Image.new("RGB", (280, 160), "#f7b267")
    draw = ImageDraw.Draw(image)
    draw.ellipse((110, 40, 190, 120), fill="#f4845f")
    draw.rectangle((0, 100, 280, 160), fill="#2a6f97")
    image.save(path)


def main(target: Path) -> None:
    with (
        tempfile.TemporaryDirectory() as name,
        serving(*INCREMENTAL, *SLOW, cwd=Path(name)) as server,
        chromium(Path(name) / "profile") as page,
    ):
        page.do("Emulation.setDeviceMetricsOverride", **SIZE)
        page.open(server.url)
        page.until("model !== null")
        photo(Path(name) / "photo.png")
        page.choose("#file", Path(name) / "photo.png")
        page.until("picture !== null")
        for number, text in enumerate(("What do you see?", "Say this while you are still writing it")):
            page.run(f"$('prompt').value = {text!r}; $('send').click()")
            page.until(f"document.querySelectorAll('.answer audio').length > {number}")
        page.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        target.write_bytes(page.picture())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
