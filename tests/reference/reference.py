"""reference.py [--bless] --ndc NDC FILE... - the examples of a reference.

Each FILE is markdown. A fenced block whose first word is `nd` is an example:

    ```nd            a whole program, kept as demo.nd
    ```nd prelude    declarations, for the fragments of this section
    ```nd fragment   what stands inside model demo() { ... } after the prelude
    ```nd file NAME  a file that later examples use; nothing is run

The words may be followed by `error`: ndc refuses that program. On the next line
after a program or a fragment a ```text block begins: all that the command
`ndc demo.nd --emit=values` prints. In a ```console block the lines that begin
with `$ ` are commands, about the last program; the others are what they print.
A program with a ```console block on the next line is not evaluated, only kept.

A block behind the comment <!-- not yet: REASON --> is skipped, unless --all is
given.
"""
import argparse
import difflib
import os
import re
import subprocess
import sys
import tempfile


class Block:
    """A fenced block: lines[begin:end] of the file, without its fences."""

    def __init__(self, words, begin, end, section, part, not_yet):
        self.words = words
        self.begin, self.end = begin, end
        self.section, self.part = section, part
        self.not_yet = not_yet


def blocks(lines):
    """All fenced blocks. A prelude holds until the next `## ` heading, which
    begins another part; the comment is about the next block."""
    found, section, part, not_yet, i = [], "", 0, False, 0
    while i < len(lines):
        line = lines[i]
        if line.startswith("#"):
            section = line.lstrip("# ")
            part += line.startswith("## ")
        if re.match(r"<!-- not yet: .* -->$", line):
            not_yet = True
        elif line.startswith("```"):
            end = lines.index("```", i + 1)
            found.append(Block(line[3:].split(), i + 1, end, section, part,
                               not_yet))
            not_yet = False
            i = end
        i += 1
    return found


def run(command, folder, ndc):
    path = os.path.dirname(os.path.abspath(ndc)) + os.pathsep + \
        os.environ.get("PATH", "")
    done = subprocess.run(command, cwd=folder, shell=True, text=True,
                          env=dict(os.environ, PATH=path),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    return done.stdout.rstrip("\n"), done.returncode


class Reference:
    def __init__(self, options, file):
        self.options, self.file = options, file
        with open(file) as f:
            self.lines = f.read().split("\n")
        self.edits = []              # (begin, end, new lines)
        self.count = self.failed = self.skipped = 0

    def fail(self, block, what):
        print("%s:%d: in section \"%s\": %s" % (
            os.path.basename(self.file), block.begin, block.section,
            what))
        self.failed += 1

    def text(self, block):
        return self.lines[block.begin:block.end]

    def compare(self, example, shown, said):
        """`shown` is the block with the expected lines, or None."""
        said = said.split("\n") if said else []
        if self.options.bless:
            if shown is None:
                self.edits.append((example.end + 1, example.end + 1,
                                   ["```text"] + said + ["```"]))
            else:
                self.edits.append((shown.begin, shown.end, said))
        elif shown is None:
            self.fail(example, "no ```text block follows")
        elif self.text(shown) != said:
            self.fail(example, "it says something else")
            for line in difflib.unified_diff(self.text(shown), said,
                                             "reference", "ndc", n=2,
                                             lineterm=""):
                print("  | " + line)

    def keep(self, name, source):
        with open(os.path.join(self.folder, name), "w") as f:
            f.write(source)

    def program(self, block, shown):
        said, status = run("ndc demo.nd --emit=values", self.folder,
                           self.options.ndc)
        want = 1 if "error" in block.words else 0
        if status != want:
            self.fail(block, "exit status %d, expected %d" % (status, want))
            print(said)
        else:
            self.compare(block, shown, said)

    def console(self, block):
        said = []
        for line in self.text(block):
            if line.startswith("$ "):
                text = run(line[2:], self.folder, self.options.ndc)[0]
                said += [line] + (text.split("\n") if text else [])
        self.compare(block, block, "\n".join(said))

    def walk(self):
        prelude, part, found = "", -1, blocks(self.lines)
        for b, after in zip(found, found[1:] + [None]):
            if b.part != part:
                prelude, part = "", b.part
            text = "".join(line + "\n" for line in self.text(b))
            joined = after.words[0] if after and after.words and \
                after.begin == b.end + 2 else ""
            if b.not_yet and not self.options.all:
                self.skipped += 1
            elif b.words[:1] == ["console"]:
                self.count += 1
                self.console(b)
            elif b.words[:2] == ["nd", "prelude"]:
                prelude = text
            elif b.words[:2] == ["nd", "file"]:
                self.keep(b.words[2], text)
            elif b.words[:1] == ["nd"]:
                if "fragment" in b.words:
                    text = "%smodel demo() {\n%s}\n" % (prelude, text)
                self.keep("demo.nd", text)
                if joined != "console":
                    self.count += 1
                    self.program(b, after if joined == "text" else None)

    def check(self):
        with tempfile.TemporaryDirectory() as self.folder:
            self.walk()
        for begin, end, new in sorted(self.edits, reverse=True):
            self.lines[begin:end] = new
        if self.options.bless:
            with open(self.file, "w") as f:
                f.write("\n".join(self.lines))
        print("%s: %d examples, %d wrong, %d not run" % (
            os.path.basename(self.file), self.count, self.failed,
            self.skipped))
        return self.failed == 0


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--ndc", required=True)
    p.add_argument("--bless", action="store_true")
    p.add_argument("--all", action="store_true")
    p.add_argument("files", nargs="+")
    options = p.parse_args()
    good = [Reference(options, file).check() for file in options.files]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
