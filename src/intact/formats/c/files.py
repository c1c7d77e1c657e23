"""The text of the files: header, program and its constants."""

from __future__ import annotations

from collections.abc import Iterable

from intact import __version__
from intact.formats.c.layer import Sources, encoding_of
from intact.formats.c.names import comment
from intact.formats.c.ports import Port, scale_text, signature
from intact.formats.c.scaling import zero_point
from intact.formats.c.shapes import shape_text


def header_file(
    name: str,
    origin: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    arena: int,
    flash: int,
) -> str:
    """Return the header that callers include."""
    prefix = name.upper()
    ports = [_port(prefix, "Input", port) for port in inputs]
    ports += [_port(prefix, "Output", port) for port in outputs]
    return f"""\
/* {name}.h: {origin}

   {name}_run reads its inputs, writes its outputs and uses {arena} bytes of static memory besides:

{_example(name, inputs, outputs)}

   A code stands for (code - zero point) * scale; to make one of a number, divide it by the scale,
   round, add the zero point and clamp to -128..127. Nothing is allocated. Inputs and outputs belong
   to the caller and must not overlap. Calls share the static memory: one at a time. */

#ifndef {prefix}_H
#define {prefix}_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {{
#endif

/* Static memory for activations, and constants in flash, in bytes. */
#define {prefix}_ARENA_BYTES {arena}
#define {prefix}_CONSTANT_BYTES {flash}

{"".join(ports)}\
{_wrapped(signature(name, inputs, outputs))};

#ifdef __cplusplus
}}
#endif

#endif
"""


def _example(name: str, inputs: tuple[Port, ...], outputs: tuple[Port, ...]) -> str:
    """Return how the function is called, for the header's head."""
    ports = (*inputs, *outputs)
    lines = [
        f"static int8_t {port.parameter}[{name.upper()}_{port.parameter.upper()}_SIZE];"
        for port in ports
    ]
    lines.append(f"{name}_run({', '.join(port.parameter for port in ports)});")
    return "\n".join(f"       {line}" for line in lines)


def _port(prefix: str, what: str, port: Port) -> str:
    encoding = encoding_of(port.tensor)
    macro = f"{prefix}_{port.parameter.upper()}"
    order = port.tensor.permutation
    axes = (
        "" if order is None else f", its axes those of the model in the order {shape_text(order)}"
    )
    return f"""\
/* {what} {comment(repr(port.name))}: int8 {shape_text(port.shape)}{axes} */
#define {macro}_SIZE {port.size}
#define {macro}_SCALE {scale_text(encoding.scale.reshape(-1)[0])}
#define {macro}_ZERO_POINT ({zero_point(encoding)})

"""


def source_file(
    name: str,
    origin: str,
    inputs: tuple[Port, ...],
    outputs: tuple[Port, ...],
    arena: int,
    sources: Sources,
) -> str:
    """Return the program."""
    prefix = name.upper()
    memory = ""
    local = ""
    if arena:
        memory = f"""\
/* Memory of the activations, aligned for kernels that read words. */
static union {{
    int32_t words;
    int8_t bytes[{prefix}_ARENA_BYTES];
}} memory;

"""
        local = "    int8_t *const arena = memory.bytes;\n\n"
    unread = [port for port in inputs if not _is_named(port.parameter, sources.calls)]
    voids = "".join(f"    (void){port.parameter};\n" for port in unread)
    calls = "\n".join(sources.calls)
    structures = "\n".join(sources.structures)
    return f"""\
/* {name}.c: {origin}

   Integers only. Activations are int8 with channels last, sums int32. Arena: {arena} bytes. */

#include "{name}.h"

#include <string.h>

#include "{name}_data.h"

/* ------------------------------------------------------------------------------------ kernels */

{sources.library.text()}
/* ------------------------------------------------------------------------------------- layers */

{structures}
/* -------------------------------------------------------------------------------------- model */

{memory}\
{_wrapped(signature(name, inputs, outputs))}
{{
{local}{voids}{calls}
}}
"""


def _is_named(parameter: str, calls: Iterable[str]) -> bool:
    words = " ".join(line for line in calls if "/*" not in line)
    return parameter in words.replace("(", " ").replace(",", " ").replace(")", " ").split()


def data_file(name: str, origin: str, sources: Sources) -> str:
    """Return the constants, which the program includes and nothing else."""
    prefix = name.upper()
    return f"""\
/* {name}_data.h: {origin}

   Constants of {name}.c, {sources.constants.flash} bytes. */

#ifndef {prefix}_DATA_H
#define {prefix}_DATA_H

#include <stdint.h>

{sources.constants.text()}
#endif
"""


def origin(target: str) -> str:
    """Return who wrote a file, for whom."""
    return f"written by intact {__version__}{f' for {comment(target)}' if target else ''}."


def _wrapped(head: str) -> str:
    """Return a function's head in lines of a hundred columns."""
    if len(head) <= 99:
        return head
    start, _, rest = head.partition("(")
    return f"{start}(\n    {rest.replace(', ', f',{chr(10)}    ')}"
