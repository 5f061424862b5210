"""Takes `nano_answer.png`, waveform and spectrogram of a spoken answer, and `nano_pictures.png`, drawings twice as
large as they are, into a folder: what the embedded models make of these commands of omni. `make picture` calls it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from PIL import Image, ImageDraw

ASK = ("recipe=qwen3_omni", "--prompt", "What is the capital of France?", "--voice", "chelsie", "--seed", "5")
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
WIDTH, WAVE, SPECTRUM = 900, 90, 200  # pixels
WINDOW, TOP_HZ, RANGE_DB = 768, 8000, 80.0
COLOURS = np.array([(12, 12, 30), (90, 30, 110), (220, 90, 60), (252, 220, 150)], float)  # from silent to loud


def run(folder: Path, *words: str) -> Path:
    code = "from omni_cli.app import main; main()"
    subprocess.run([sys.executable, "-c", code, "run", *words, "--out", str(folder)], check=True)
    return folder


def answer(sound: Path) -> Image.Image:
    samples, rate_hz = soundfile.read(sound, dtype="float32")
    image = Image.new("RGB", (WIDTH, WAVE + SPECTRUM), "white")
    pen = ImageDraw.Draw(image)
    for x, part in enumerate(np.array_split(samples, WIDTH)):
        high, low = (WAVE / 2 * (1 - value) for value in (part.max(), part.min()))
        pen.line((x, high, x, low), fill=(42, 111, 151))
    starts = np.linspace(0, max(len(samples) - WINDOW, 0), WIDTH).astype(int)
    padded = np.pad(samples, (0, WINDOW))
    frames = np.stack([padded[start : start + WINDOW] for start in starts]) * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(frames))[:, : TOP_HZ * WINDOW // rate_hz].T[::-1]
    loud = (20 * np.log10(power / power.max() + 1e-9) / RANGE_DB + 1).clip(0, 1) * (len(COLOURS) - 1)
    colours = np.stack([np.interp(loud, range(len(COLOURS)), COLOURS[:, channel]) for channel in range(3)], axis=-1)
    image.paste(Image.fromarray(colours.astype(np.uint8)).resize((WIDTH, SPECTRUM)), (0, WAVE))
    return image


def draw(folder: Path) -> list[Path]:
    """The pictures of PROMPTS."""
    batch = folder / "batch.jsonl"
    lines = ({"id": str(place), "prompt": prompt, "seed": 1} for place, prompt in enumerate(PROMPTS))
    batch.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    drawn = run(folder / "drawn", "recipe=qwen_image", "--input", str(batch))
    return [drawn / str(place) / "image.png" for place in range(len(PROMPTS))]


def sheet(pictures: list[Path]) -> Image.Image:
    image = Image.new("RGB", (SIDE * COLUMNS, SIDE * (len(pictures) // COLUMNS)))
    for place, path in enumerate(pictures):
        with Image.open(path) as picture:
            image.paste(picture.resize((SIDE, SIDE)), (place % COLUMNS * SIDE, place // COLUMNS * SIDE))
    return image


def main(target: Path) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answer(run(folder / "answer", *ASK) / "request" / "audio.wav").save(target / "nano_answer.png", optimize=True)
        sheet(draw(folder)).save(target / "nano_pictures.png", optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
