/* parse_lex.c - tokens of the text form, for parse.c.
 *
 * Words are letters, digits, `_` and `.`; a word that begins with a digit (or
 * a minus sign) may be a number: 12, -0.5, 1e-07, 1f1b. Values are `%word`.
 * `#` begins a comment. Line ends mean nothing.
 */
#include "parse.h"

#include <string.h>

static bool digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool word_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || digit(c) ||
           c == '_' || c == '.';
}

/* One past the word at i; a sign belongs to it after the e of a number. */
static size_t word_end(const nd_lexer *x, size_t i)
{
    bool number = x->text[i] == '-' || digit(x->text[i]);
    size_t j = i + (x->text[i] == '-');
    while (j < x->len) {
        char c = x->text[j], before = j > i ? x->text[j - 1] : 0;
        bool sign = number && (c == '-' || c == '+') && before == 'e' &&
                    j + 1 < x->len && digit(x->text[j + 1]);
        if (!word_char(c) && !sign)
            break;
        j++;
    }
    return j;
}

static int hex(char c)
{
    return digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The text between quotes at i, escapes undone. False if it does not end. */
static bool string_at(nd_lexer *x, size_t i, nd_token *t)
{
    nd_buf b = {.arena = x->arena};
    nd_put(&b, "");
    for (; i < x->len && x->text[i] != '"' && x->text[i] != '\n'; i++) {
        char c = x->text[i];
        if (c == '\\' && i + 1 < x->len) {
            c = x->text[++i];
            if (c == 'x' && i + 2 < x->len && hex(x->text[i + 1]) >= 0 &&
                hex(x->text[i + 2]) >= 0) {
                c = (char)(hex(x->text[i + 1]) * 16 + hex(x->text[i + 2]));
                i += 2;
            }
        }
        if (c)
            nd_putn(&b, &c, 1);
    }
    t->text = b.s;
    t->loc.end = (uint32_t)(i + 1);
    return i < x->len && x->text[i] == '"';
}

static size_t skip_blank(const nd_lexer *x)
{
    size_t i = x->at;
    while (i < x->len) {
        char c = x->text[i];
        if (c == '#')
            while (i < x->len && x->text[i] != '\n')
                i++;
        else if (c == ' ' || c == '\t' || c == '\n' || c == '\r')
            i++;
        else
            break;
    }
    return i;
}

nd_token nd_lex(nd_lexer *x)
{
    size_t i = skip_blank(x);
    nd_token t = {.kind = T_END, .text = "end of file"};
    t.loc = (nd_loc){x->file, (uint32_t)i, (uint32_t)i};
    x->at = i;
    if (i >= x->len)
        return t;
    char c = x->text[i], next = i + 1 < x->len ? x->text[i + 1] : 0;
    size_t start = i, end = i + 1;
    if (c == '"') {
        t.kind = string_at(x, i + 1, &t) ? T_STRING : T_BAD;
        x->at = t.loc.end;
        return t;
    }
    if (c == '%' && word_char(next)) {
        t.kind = T_VALUE;
        start = i + 1;
        end = word_end(x, start);
    } else if (word_char(c) || (c == '-' && (digit(next) || next == 'i'))) {
        t.kind = T_WORD;
        end = word_end(x, i);
    } else if (c == '-' && next == '>') {
        t.kind = T_ARROW;
        end = i + 2;
    } else {
        t.kind = c && strchr("()[]{},:=+^/@", c) ? (nd_token_kind)c : T_BAD;
    }
    t.text = nd_strndup(x->arena, x->text + start, end - start);
    t.loc.end = (uint32_t)end;
    x->at = end;
    return t;
}
