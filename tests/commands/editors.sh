#!/bin/sh
# The syntax files for editors know the words that the lexer and the checker
# know, and no others; they load.
. "$(dirname "$0")/../lib.sh"
dir=$NDC_SOURCE/examples/editors

"$ndc" doc --keywords | sort >"$work/keywords"
"$ndc" doc --builtins | sort >"$work/builtins"
[ -s "$work/keywords" ] && [ -s "$work/builtins" ] || fail "no words"

# vim_words GROUP...
vim_words() {
    for group in "$@"; do
        sed -n "s/^syn keyword $group //p" "$dir/vim/syntax/nd.vim"
    done | tr ' ' '\n' | sort
}
vim_words ndDeclaration ndStatement ndPlan ndOperator ndConstant |
    diff -u "$work/keywords" - || fail "keywords of nd.vim"
vim_words ndFunction | diff -u "$work/builtins" - || fail "functions of nd.vim"

if command -v python3 >/dev/null; then
    python3 - "$dir/vscode" "$work" <<'PY' || fail "VS Code"
import json, os, re, sys
folder, work = sys.argv[1:]
def load(path):
    return json.load(open(os.path.join(folder, path)))
def words(name):
    return open(os.path.join(work, name)).read().split()
package = load("package.json")["contributes"]
for g in package["grammars"]:
    grammar = load(g["path"])
    assert grammar["scopeName"] == g["scopeName"]
for l in package["languages"]:
    load(l["configuration"])
have = {"keywords": [], "builtins": []}
for p in grammar["patterns"]:
    re.compile(p["match"])
    list_of = re.fullmatch(r"\\b\(([a-z0-9_|]+)\)\\b", p["match"])
    if not list_of or p["name"].startswith("storage"):
        continue
    kind = "builtins" if "builtin" in p["name"] else "keywords"
    have[kind] += list_of.group(1).split("|")
for kind in have:
    assert sorted(have[kind]) == sorted(words(kind)), (
        kind, set(have[kind]) ^ set(words(kind)))
PY
fi

if command -v vim >/dev/null; then
    vim -es -u NONE -i NONE --cmd "set runtimepath+=$dir/vim" \
        -c 'filetype plugin on' -c 'syntax on' \
        -c "edit $NDC_SOURCE/examples/gpt.nd" -c "redir! > $work/vim" \
        -c 'echo &filetype b:current_syntax &commentstring &shiftwidth' \
        -c 'call search("^axis")' \
        -c 'echo synIDattr(synID(line("."), 1, 1), "name")' \
        -c 'redir END' -c 'qa!' </dev/null || fail "vim does not load nd.vim"
    printf '\nnd nd # %%s 2\nndDeclaration' | cmp - "$work/vim" || {
        fail "vim takes the file for another"
        cat "$work/vim"
    }
fi
[ $failed = 0 ] && echo "ok"
