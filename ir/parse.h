/* parse.h - what parse_lex.c, parse_op.c and parse.c share. */
#ifndef ND_PARSE_H
#define ND_PARSE_H

#include "priv.h"

/* Punctuation is its own character. */
typedef enum {
    T_END = 256, T_WORD, T_VALUE, T_STRING, T_ARROW, T_BAD
} nd_token_kind;

typedef struct nd_token {
    nd_token_kind kind;
    const char *text;                /* a value's without %, a string's value */
    nd_loc loc;
} nd_token;

typedef struct nd_lexer {
    nd_arena *arena;
    const char *text;
    size_t len, at;
    int file;
} nd_lexer;

nd_token nd_lex(nd_lexer *x);

/* What parse.c and parse_op.c share: the reader of one module. After the
 * first error (`failed`) everything returns quickly; nothing is half read. */
typedef struct nd_reader {
    nd_ctx *c;
    nd_module *m;
    nd_lexer lex;
    nd_token tok, prev;
    bool failed;
    int depth;                       /* of nested bodies */
    nd_table values, axes, params;
} nd_reader;

void nd_rd_next(nd_reader *r);
bool nd_rd_is(nd_reader *r, int kind);
bool nd_rd_word(nd_reader *r, const char *w);     /* the token is this word */
bool nd_rd_take(nd_reader *r, int kind);          /* if it is there */
bool nd_rd_take_word(nd_reader *r, const char *w);
void nd_rd_expect(nd_reader *r, int kind, const char *what);
void nd_rd_fail(nd_reader *r, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
const char *nd_rd_name(nd_reader *r, const char *what);
const char *nd_rd_string(nd_reader *r);
int64_t nd_rd_int(nd_reader *r, int64_t lo, int64_t hi, const char *what);
double nd_rd_num(nd_reader *r);
nd_axis *nd_rd_axis(nd_reader *r);
int nd_rd_mesh(nd_reader *r);                     /* index of a mesh axis */
nd_type nd_rd_type(nd_reader *r);
nd_cut nd_rd_cut(nd_reader *r);
uint32_t nd_rd_mask(nd_reader *r);
int nd_rd_choice(nd_reader *r, const char *const *names, const char *what);
/* parse_op.c: the lines of a block up to its closing brace. */
void nd_rd_block(nd_reader *r, nd_block *b);

#endif
