"""Stands in for nvcc: makes a shared library of kernels, which the tests' driver loads as a cubin.

The source is preprocessed, so that macros hide nothing; each shared variable becomes one that is
undefined when a block begins; each kernel is exported together with whether its threads must be
fibers, which they must where it, or what it names, has a barrier, a shuffle or a vote.
"""

import os
import re
import subprocess
import sys

COMPILE = ["-x", "c++", "-std=c++17", "-Og", "-w", "-fPIC", "-fno-strict-aliasing"]
COMPILE += ["-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-gnu-unique"]
# Kernels tell the driver what they access: races.cpp.
COMPILE += ["-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"]
PREPROCESS = ["-D__CUDASHIM__=1", "-D__CUDACC__=1", "-D__CUDA_ARCH__=900"]
WITH_VALUE = {"-code", "--gpu-code", "-gencode", "--compiler-options", "-Xcompiler", "-Xptxas"}
MODES = {"cubin", "fatbin", "ptx"}
MEETING = re.compile(r"__sync\w+|__shfl_\w+|__(?:ballot|any|all)_sync|cudashim_cluster_barrier")
CLUSTER = r"__cluster_dims__\s*\(\s*(\d+)[^)]*\)\s*"
KEYWORDS = {"if", "for", "while", "switch", "return", "sizeof", "else", "do", "catch"}


def braced(source: str, start: int) -> str:
    """Return what stands from a place within braces up to the one that closes them."""
    depth, end = 1, start
    while depth and end < len(source):
        depth += {"{": 1, "}": -1}.get(source[end], 0)
        end += 1
    return source[start:end]


def bodies(source: str) -> dict[str, str]:
    """Return the text of each function, by name."""
    found: dict[str, str] = {}
    for match in re.finditer(r"\b(\w+)\s*\(([^;{}]*)\)\s*(?:const\s*)?\{", source):
        if match[1] not in KEYWORDS:
            found[match[1]] = found.get(match[1], "") + braced(source, match.end())
    return found


def members(body: str) -> list[str]:
    """Return the names of what a structure holds, by what stands in its braces."""
    content = ""
    while body != content:  # without types of its own, and what its functions do
        content, body = body, re.sub(r"\b(?:struct|union|enum)\b[^;{}()]*\{[^{}]*\}", " ", body)
        body = re.sub(r"\([^()]*\)[^;{}()]*\{[^{}]*\}", "();", body)
        body = re.sub(r"\{[^{}]*\}", " ", body)
    body = re.sub(r"\b(?:public|private|protected)\s*:", "", body)
    lines = (line for line in body.split(";") if not re.search(r"[(<:]|\bstatic\b|\busing\b", line))
    names = (
        re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", part, re.S)
        for line in lines
        for part in line.split(",")
    )
    return [name[1] for name in names if name]


def structures(source: str) -> list[str]:
    """Return C++ that names the members of each structure, some of which may be pointers."""
    lines = []
    while block := re.search(r'extern\s+"C"\s*\{', source):  # its braces are none of a function
        inner = braced(source, block.end())
        source = source[: block.start()] + inner[:-1] + source[block.end() + len(inner) :]
    head = r"\bstruct\s+(?:(?:alignas|__align__)\s*\(\w+\)\s*)?(\w+)\s*(?::[^;{}()]*)?\{"
    for match in re.finditer(head, source):
        before = source[: match.start()]
        is_local = before.count("{") > before.count("}")
        if not is_local and not re.search(r"template\s*<[^;{}]*>\s*$", before):
            names = members(braced(source, match.end())[:-1])
            listed = " ".join(f"CUDASHIM_MEMBER({match[1]}, {name})" for name in names)
            lines.append(f"CUDASHIM_STRUCTURE({match[1]}, {listed})")
    return lines


def meeting_functions(functions: dict[str, str]) -> set[str]:
    """Return the functions whose threads wait for each other, directly or in what they name."""
    words = {name: set(re.findall(r"\w+", body)) for name, body in functions.items()}
    found = {name for name, body in functions.items() if MEETING.search(body)}
    while True:
        more = {name for name in words.keys() - found if words[name] & found}
        if not more:
            return found
        found |= more


def shared_variables(declaration: re.Match) -> str:
    """Write `__shared__ float a[2], b` as two static variables and references to what they hold."""
    parts = re.split(r",(?![^\[(<]*[\])>])", declaration[1])
    first = re.fullmatch(r"\s*(.*?[\s>])(\w+)\s*((?:\[[^\]]*\]\s*)*)", parts[0], re.S)
    if first is None:
        return declaration[0]
    kind, text = first[1].strip(), ""
    for part in (parts[0][first.end(1) - first.start(0) :], *parts[1:]):
        name, sizes = re.fullmatch(r"\s*(\w+)\s*((?:\[[^\]]*\]\s*)*)", part, re.S).groups()
        text += f"static cudashim::Shared<{kind}{sizes}> {name}__shared; "
        text += f"auto &{name} = {name}__shared.get(); "
    return text


def transformed(source: str, architecture: int) -> str:
    """Return C++ for a preprocessed CUDA source."""
    source = re.sub(r"__launch_bounds__\s*\([^)]*\)", "", source)
    source = re.sub(r"(__shared__\s+)__align__\s*\([^)]*\)", r"\1", source)
    source = re.sub(r"__align__\s*\([^)]*\)(\s+__shared__)", r"\1", source)
    source = re.sub(
        r"extern\s+__shared__\s+([\w:<>\s]+?)\s+(\w+)\s*\[\s*\]\s*;",
        r"\1 *\2 = reinterpret_cast<\1 *>(cudashim_now.dynamic_shared);",
        source,
    )
    source = re.sub(r"__shared__\s+([^;={}]+);", shared_variables, source)
    kernels = {}
    head = rf"__global__\s+(?:{CLUSTER})?(?:static\s+|inline\s+)*void\s+(\w+)\s*\("
    for match in re.finditer(head, source):
        if not re.search(r"template\s*<[^;{}]*>\s*(?:static\s+)?$", source[: match.start()]):
            kernels[match[2]] = match[1] or 1
    source = re.sub(CLUSTER, "", source)
    waiting = meeting_functions(bodies(source))
    exports = structures(source)
    exports += [
        f"CUDASHIM_EXPORT({kernel}, {'true' if kernel in waiting else 'false'}, {cluster})"
        for kernel, cluster in kernels.items()
    ]
    exports.append('extern "C" __attribute__((visibility("default")))')
    exports.append(
        f"const int cudashim_architecture; const int cudashim_architecture = {architecture};"
    )
    return "\n".join([source, *exports, ""])


def compile_cuda(folder: str, out: str, architecture: int, *given: str, text: str | None = None):
    """Compile CUDA C.

    Args:
        folder: That of the driver.
        out: The file to make; '': preprocess only.
        architecture: E.g. 90.
        *given: Options of the preprocessor, and the file; '-': `text`.
        text: The source.

    Returns:
        The completed process: with what the compiler said, and the preprocessed source.
    """
    command = ["g++", "-E", "-x", "c++", "-std=c++17", *PREPROCESS, *given]
    done = subprocess.run(command, capture_output=True, text=True, input=text)
    if done.returncode or not out:
        return done
    command = ["g++", *COMPILE, "-include", f"{folder}/device.h", "-shared", "-Wl,-Bsymbolic"]
    # The libraries that the driver needs are the kernels' too.
    command += ["-nostdlib", "-o", out, "-", "-x", "none", f"{folder}/libcuda.so.1"]
    text = transformed(done.stdout, architecture)
    return subprocess.run(command, capture_output=True, text=True, input=text)


def main(arguments: list[str]) -> int:
    """Do what nvcc would do with these arguments."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if "--version" in arguments:
        print(f"the compiler of the tests\nBuild {os.path.basename(folder)}")
        return 0
    mode, passed, source, out, architecture = "cubin", [], None, None, 75
    rest = iter(arguments)
    for argument in rest:
        key, _, value = argument.partition("=")
        if argument.lstrip("-") in MODES or argument == "--preprocess":
            mode = argument.lstrip("-")
        elif key in ("-arch", "--gpu-architecture"):
            architecture = int(re.sub(r"\D", "", value or next(rest)))
        elif argument in WITH_VALUE:
            next(rest)
        elif argument in ("-o", "--output-file"):
            out = next(rest)
        elif argument[:2] in ("-I", "-D"):
            passed.append(argument)
        elif argument.endswith(".cu"):
            source = argument
    if source is None:
        print("nvcc of the tests: no .cu file given", file=sys.stderr)
        return 1
    out = "" if mode == "preprocess" else out or f"{os.path.splitext(source)[0]}.{mode}"
    done = compile_cuda(folder, out, architecture, *passed, source)
    sys.stdout.write(done.stdout)
    sys.stderr.write(done.stderr)
    return done.returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
