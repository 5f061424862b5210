"""Takes `nano_pictures.png`, drawings of the embedded nano-image by this checkout's own command, twice as large as they
are, into a folder. `make picture` calls it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

PROMPTS = (
    "a red heart on a blue background",
    "a big giraffe on a white background",
    "a small rocket on a black background",
    "a strawberry and a banana on a green background",
    "a yellow star on a black background",
    "a big house on a yellow background",
    "a purple triangle and an orange square on a gray background",
    "a birthday cake on a pink background",
    "a big dinosaur on a white background",
    "a robot and a guitar on a yellow background",
    "a snowman on a blue background",
    "a big green ring on a pink background",
    "a small penguin on a red background",
    "an owl and a moon on a black background",
    "a big sunflower on a green background",
    "a bicycle on a white background",
)
SIDE, COLUMNS = 128, 8


def draw(folder: Path) -> list[Path]:
    """The pictures of PROMPTS."""
    batch = folder / "batch.jsonl"
    lines = ({"id": str(place), "prompt": prompt, "seed": 1} for place, prompt in enumerate(PROMPTS))
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    words = ("run", "recipe=qwen_image", "--input", str(batch), "--out", str(folder / "drawn"))
    subprocess.run([sys.executable, "-c", "from omni_cli.app import main; main()", *words], check=True)
    return [folder / "drawn" / str(place) / "image.png" for place in range(len(PROMPTS))]


def sheet(pictures: list[Path]) -> Image.Image:
    image = Image.new("RGB", (SIDE * COLUMNS, SIDE * (len(pictures) // COLUMNS)))
    for place, path in enumerate(pictures):
        with Image.open(path) as picture:
            image.paste(picture.resize((SIDE, SIDE)), (place % COLUMNS * SIDE, place // COLUMNS * SIDE))
    return image


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        sheet(draw(Path(name))).save(target / "nano_pictures.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
