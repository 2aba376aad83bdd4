/* fmt_file.c - ndc fmt: a file is read, formatted, checked and put back.
 *
 * Nothing is written unless the result parses to the same tree and differs
 * from the source in blanks alone. The new file takes the place of the old one
 * in one step, so that whatever happens one of the two is there.
 */
#include "frontend.h"
#include "ndc.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the check ----------------------------------------------------------- */

static bool is_blank(char ch)
{
    return ch == ' ' || ch == '\t' || ch == '\n';
}

/* Equal but for blanks? No token and no comment is lost then. */
static bool same_ink(const nd_file *a, const nd_buf *b)
{
    size_t i = 0, k = 0;
    for (;; i++, k++) {
        while (i < a->len && is_blank(a->text[i]))
            i++;
        while (k < b->n && is_blank(b->s[k]))
            k++;
        if (i == a->len || k == b->n)
            return i == a->len && k == b->n;
        if (a->text[i] != b->s[k])
            return false;
    }
}

bool nd_format_keeps(nd_ctx *c, int file, const ast_file *tree,
                     const nd_buf *out)
{
    nd_buf old = {c->arena, NULL, 0, 0}, new = {c->arena, NULL, 0, 0};
    const char *name = nd_fmt(c->arena, "%s, formatted",
                              c->files.v[file - 1].name);
    ast_file *again = nd_parse(c, nd_add_bytes(c, name, out));
    if (!again)
        return false;
    nd_put(&old, "");
    nd_put(&new, "");
    ast_print(&old, tree);
    ast_print(&new, again);
    return !strcmp(old.s, new.s) && same_ink(&c->files.v[file - 1], out);
}

/* ---- files --------------------------------------------------------------- */

static bool put(FILE *f, const nd_buf *b)
{
    return (b->n == 0 || fwrite(b->s, 1, b->n, f) == b->n) && !fflush(f);
}

/* A link stays one: the file that it names is replaced. */
static bool replace(nd_ctx *c, const char *path, const nd_buf *b)
{
    char *real = realpath(path, NULL);
    char *half = nd_fmt(c->arena, "%s.XXXXXX", real ? real : path);
    struct stat st;
    int fd = real && !stat(real, &st) ? mkstemp(half) : -1;
    FILE *f = fd < 0 ? NULL : fdopen(fd, "wb");
    bool ok = f && !fchmod(fd, st.st_mode & 07777) && put(f, b);
    if (f)
        ok = !fclose(f) && ok;
    else if (fd >= 0)
        close(fd);
    ok = ok && !rename(half, real);
    if (!ok) {
        nd_error(c, nd_nowhere, "cannot write `%s`: %s", path, strerror(errno));
        if (fd >= 0)
            unlink(half);
    }
    free(real);
    return ok;
}

static bool read_source(const char *path, nd_buf *raw)
{
    if (!strcmp(path, "-"))
        return nd_read_bytes(stdin, raw);
    FILE *f = fopen(path, "rb");
    if (!f)
        return false;
    bool ok = nd_read_bytes(f, raw);
    int why = errno;
    fclose(f);
    errno = why;
    return ok;
}

static int deliver(nd_ctx *c, const ndc_fmt_options *o, const char *name,
                   const nd_buf *raw, const nd_buf *out)
{
    bool same = raw->n == out->n && !memcmp(raw->s, out->s, out->n);
    if (o->check) {
        if (!same)
            puts(name);
        return same ? NDC_OK : NDC_BAD_INPUT;
    }
    if (o->to_stdout || !strcmp(o->file, "-")) {
        if (put(stdout, out))
            return NDC_OK;
        nd_error(c, nd_nowhere, "cannot write `stdout`");
        return NDC_BAD_INPUT;
    }
    return same || replace(c, o->file, out) ? NDC_OK : NDC_BAD_INPUT;
}

int ndc_fmt(const ndc_fmt_options *o)
{
    nd_ctx *c = nd_ctx_new();
    nd_buf raw = {c->arena, NULL, 0, 0}, out = {c->arena, NULL, 0, 0};
    const char *name = strcmp(o->file, "-") ? o->file : "<stdin>";
    int rc = NDC_BAD_INPUT;
    if (!read_source(o->file, &raw)) {
        nd_error(c, nd_nowhere, "cannot read `%s`: %s", name, strerror(errno));
    } else {
        int file = nd_add_bytes(c, name, &raw);
        ast_file *tree = nd_parse(c, file);
        nd_put(&out, "");
        if (tree)
            nd_format(c, file, &out);
        if (tree && nd_format_keeps(c, file, tree, &out)) {
            rc = deliver(c, o, name, &raw, &out);
        } else if (tree) {
            nd_error(c, nd_nowhere, "internal error: formatting would change "
                     "`%s`; it is left as it is", name);
            rc = NDC_BUG;
        }
    }
    nd_ctx_free(c);
    return rc;
}
