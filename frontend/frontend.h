/* frontend.h - source text -> syntax tree -> checked graph.
 *
 *   text --nd.l--> tokens --lex.c--> tokens, newlines filtered
 *        --nd.y--> ast_file --check*.c--> nd_module
 *
 * The checker runs the program once, symbolically: a call of a function
 * evaluates its body in place, and every operation it meets becomes an op of
 * the graph. So there is one pass, and errors speak about real axes.
 */
#ifndef ND_FRONTEND_H
#define ND_FRONTEND_H

#include "../ir/ir.h"

/* ---- syntax tree (ast.c) ------------------------------------------------- */

typedef struct ast_name {
    const char *s;
    nd_loc loc;
} ast_name;
typedef ND_VEC(ast_name) ast_names;

typedef struct ast_expr ast_expr;
typedef ND_VEC(ast_expr *) ast_exprs;

typedef struct ast_item {            /* in brackets: a   a: e   a: e..e */
    ast_name name;
    ast_expr *lo, *hi;
} ast_item;
typedef ND_VEC(ast_item) ast_items;

typedef struct ast_brk {             /* [left]   [left -> right] */
    ast_items *left, *right;         /* right is NULL without an arrow */
    nd_loc loc;
} ast_brk;

typedef struct ast_arg {             /* e   name = e */
    ast_name name;                   /* name.s is NULL if positional */
    ast_expr *e;
} ast_arg;
typedef ND_VEC(ast_arg) ast_args;

typedef enum {
    E_NAME,                          /* str */
    E_NUM,                           /* num; integer: inum too */
    E_STR,                           /* str */
    E_INF, E_TRUE, E_FALSE,
    E_NEG, E_NOT,                    /* a */
    E_ADD, E_SUB, E_MUL, E_DIV, E_IDIV, E_MOD, E_POW,
    E_LT, E_LE, E_GT, E_GE, E_EQ, E_NE, E_AND, E_OR,    /* a, b */
    E_INDEX,                         /* a[brk] */
    E_CALL,                          /* a(args), as or like */
    E_PARAM,                         /* param brk ~ str(args) */
    E_LIST,                          /* [args], in configuration only */
    E_MAP                            /* {args}, in configuration only */
} ast_kind;

struct ast_expr {
    ast_kind kind;
    int depth;                       /* nesting, bounded */
    nd_loc loc, oploc;               /* whole; operator or callee */
    const char *str;
    double num;
    int64_t inum;
    bool integer;
    ast_expr *a, *b;
    ast_brk *brk;
    ast_args *args;                  /* NULL: no parentheses */
    ast_name as, like;               /* s is NULL if absent */
};

typedef struct ast_stmt ast_stmt;
typedef ND_VEC(ast_stmt *) ast_stmts;
typedef enum {
    S_ASSIGN, S_RETURN, S_OUTPUT, S_REPEAT, S_AXIS, S_LET
} ast_stmt_kind;

struct ast_stmt {
    ast_stmt_kind kind;
    nd_loc loc;
    ast_names *names;                /* what it names; repeat: the axis */
    ast_exprs *exprs;                /* assign, axis, let: one; return: any */
    ast_name as;                     /* repeat */
    ast_stmts *body;                 /* repeat */
};

typedef struct ast_par {             /* a parameter of fn or model */
    ast_name name;
    ast_name type;                   /* s NULL: untyped */
    ast_brk *brk;                    /* of the type, or NULL */
    ast_expr *value;                 /* default, or NULL */
} ast_par;
typedef ND_VEC(ast_par) ast_pars;

typedef struct ast_rule {            /* a -> b   (a, b) -> (c, d) */
    ast_names *from, *to;
    nd_loc loc;
} ast_rule;
typedef ND_VEC(ast_rule) ast_rules;

typedef enum {
    P_MESH, P_SHARD, P_PIPELINE, P_ZERO, P_RECOMPUTE, P_COMPRESS,
    P_CONTEXT, P_MICROBATCHES
} ast_pent_kind;

typedef struct ast_pent {            /* an entry of a plan */
    ast_pent_kind kind;
    nd_loc loc;
    ast_args *kvs;                   /* mesh, pipeline options */
    ast_name scope;                  /* shard: name or pattern, or NULL;
                                        context: the form */
    ast_name more;                   /* context: a second word, or NULL */
    bool quoted;                     /* scope is a pattern */
    ast_rules *rules;                /* shard, pipeline */
    ast_names *names;                /* zero, context over; compress: what how
                                        axis */
    ast_expr *value;                 /* zero level, microbatches */
    ast_exprs *exprs;                /* recompute */
} ast_pent;
typedef ND_VEC(ast_pent *) ast_pents;

typedef enum {
    I_AXIS, I_LET, I_USE, I_FN, I_MODEL, I_TRAIN, I_PLAN, I_CLUSTER
} ast_item_kind;

typedef struct ast_decl {            /* one declaration of a file */
    ast_item_kind kind;
    nd_loc loc;                      /* its header */
    ast_name name;                   /* s NULL: train and plan without one */
    bool quoted;                     /* use "path" */
    ast_expr *value;                 /* axis, let */
    ast_brk *brk;                    /* fn: groups */
    ast_pars *pars;                  /* fn, model */
    ast_stmts *body;                 /* fn, model */
    ast_args *ents;                  /* train, cluster */
    ast_pents *pents;                /* plan */
} ast_decl;

typedef struct ast_file {
    int file;
    ND_VEC(ast_decl *) decls;
} ast_file;

/* What the generated parser carries. */
typedef struct ast_parser {
    nd_ctx *ctx;
    ast_file *out;
    struct lexer *lex;
} ast_parser;

enum { AST_MAX_DEPTH = 400 };        /* expressions nest at most so deep */

ast_expr *ast_leaf(ast_parser *p, ast_kind k, nd_loc loc, const char *s);
ast_expr *ast_number(ast_parser *p, nd_loc loc, const char *text);
ast_expr *ast_unary(ast_parser *p, ast_kind k, nd_loc loc, nd_loc op,
                    ast_expr *a);
ast_expr *ast_binary(ast_parser *p, ast_kind k, nd_loc loc, nd_loc op,
                     ast_expr *a, ast_expr *b);
ast_expr *ast_index(ast_parser *p, nd_loc loc, ast_expr *a, ast_brk *b);
ast_expr *ast_call(ast_parser *p, nd_loc loc, ast_expr *f, ast_args *args);
ast_expr *ast_config(ast_parser *p, ast_kind k, nd_loc loc, ast_args *args);
ast_expr *ast_param(ast_parser *p, nd_loc loc, ast_brk *b, ast_name init,
                    ast_args *args);
/* The tree without places: equal for programs that differ in blanks. */
void ast_print(nd_buf *b, const ast_file *f);
/* One node a line, each with its place: --emit=ast. */
void ast_dump(nd_ctx *c, nd_buf *b, const ast_file *f);
const char *ast_text(nd_arena *a, const ast_expr *e);
/* Does an expression of these statements read the name? */
bool ast_reads(const ast_stmts *body, const char *name);
const char *ast_op_text(ast_kind k);         /* "+", or NULL */

/* ---- nd.l, lex.c, nd.y --------------------------------------------------- */

enum { LEX_MAX_NEST = 200 };         /* brackets nest at most so deep */

typedef struct lexer {
    nd_ctx *ctx;
    int file;
    uint32_t pos;                    /* next byte */
    void *raw;                       /* the flex scanner */
    int nest;
    char open[LEX_MAX_NEST];         /* brackets that are open */
    nd_loc open_at[LEX_MAX_NEST];
    int last;                        /* last token handed out */
    int held;                        /* token to hand out next, or 0 */
    const char *held_text;
    nd_loc held_loc;
    bool recovering;                 /* from an error, to the next NL */
    bool stopped;                    /* gave up: end of file from here on */
} lexer;

void lex_open(lexer *lx, const char *text, size_t n);
void lex_close(lexer *lx);
int lex_keyword(const char *s);
const char *lex_keyword_text(int i);         /* NULL behind the last */
/* Does a statement go on behind this token, at the end of a line? */
bool lex_continues(int last);
/* The next token as it stands in the file, newlines included. */
int lex_token(lexer *lx, nd_loc *at);
/* After an error in a declaration's header: skip what it encloses. */
void lex_skip_block(lexer *lx);
/* After an error in a statement: skip a block that begins on the next line. */
void lex_skip_brace(lexer *lx);
/* Is a ( or [ from a line before `at` still open, and where? */
bool lex_unclosed(const lexer *lx, nd_loc at, nd_loc *open);
/* The innermost bracket that is open: 0 if none is. */
char lex_open_bracket(const lexer *lx, nd_loc *open);

/* NULL after errors. Never crashes, whatever the bytes. */
ast_file *nd_parse(nd_ctx *c, int file);

/* ---- fmt.c, fmt_align.c: blanks and line breaks -------------------------- */

enum { FMT_COMMENT = -1 };

typedef struct fmt_piece {           /* a token or a comment */
    int tok;                         /* FMT_COMMENT: a comment */
    uint32_t begin, end;             /* in the text */
    int nl, col;                     /* there: line ends before it, column */
    int width;
    int depth;                       /* brackets around it */
    int match;                       /* of a bracket: the other one */
    bool block;                      /* a bracket of a block */
    bool first;                      /* begins a statement */
    bool side;                       /* ( of `shard params (d, e) -> fsdp` */
    bool goes_on;                    /* on a new line, goes on with one */
    bool line, blank;                /* begins a line; behind a blank one */
    int space;                       /* blanks before it */
} fmt_piece;

typedef struct fmt_text {
    nd_arena *arena;
    const char *text;
    size_t len;
    ND_VEC(fmt_piece) p;
} fmt_text;

void fmt_align(fmt_text *f);
/* The formatted text of a file that parses. */
void nd_format(nd_ctx *c, int file, nd_buf *out);
/* Is that the same tree, and the same text but for blanks? (fmt_file.c) */
bool nd_format_keeps(nd_ctx *c, int file, const ast_file *tree,
                     const nd_buf *out);

/* ---- check.c: the tree -> the graph -------------------------------------- */

typedef struct nd_front_options {
    const char *mesh;                /* "dp=2,tp=4", or NULL */
    int nset;
    const char *const *set;          /* "axis=N" */
    const char *plan_path;           /* file whose plan replaces the plan */
    const char *model;               /* which model, or NULL */
    bool require_even;               /* for the plan */
    int microbatches;                /* at most so many; 0: the plan's */
    bool sealed;                     /* reads no other file: use "f" fails */
} nd_front_options;

/* Parses and checks a file and what it uses. NULL after errors. */
nd_module *nd_frontend(nd_ctx *c, int file, const nd_front_options *o);
/* Reads a file into the context; 0, errno and no message if it cannot be read.
 * A byte order mark is dropped, and every line ends in "\n". */
int nd_read_file(nd_ctx *c, const char *path);
/* The two halves of that: bytes as they are, and a file of the context. */
bool nd_read_bytes(FILE *f, nd_buf *b);
int nd_add_bytes(nd_ctx *c, const char *name, const nd_buf *bytes);

/* ---- verify_sizes.c: small axes for a plan ------------------------------- */

/* How one program is compiled again and again; messages are kept back. */
typedef struct vf_request {
    const char *path;
    nd_front_options front;          /* with the user's own sizes */
    nd_arena *arena;
} vf_request;

/* The module in a context of its own, passes up to `last` done (NULL: none,
 * "all": all). NULL after an error, whose text is then in *why. */
nd_module *vf_compile(const vf_request *q, const nd_front_options *front,
                      const char *last, const char **why);

typedef struct vf_size {
    const char *axis;
    int64_t was, is;
} vf_size;

enum { VF_LEAST = 3 };

/* Sizes for the axes that the file declares by a number, as small as the plan
 * allows from `least` on; `m` is the program as it is, after all passes. */
int vf_shrink(const vf_request *q, nd_module *m, int least, vf_size **out);
/* The options of the request with these sizes. */
nd_front_options vf_sized(const vf_request *q, int n, const vf_size *size);

/* ---- values.c: what a program computes ----------------------------------- */

/* Evaluates the module on one device at its initial parameters, on the inputs
 * that `data = synthetic` makes for the first step, and prints the outputs, the
 * loss and, if it has them, the gradients. False after errors. */
bool nd_values(nd_module *m, nd_buf *out);

/* nn_nd.c, made from frontend/lib/nn.nd by the build */
extern const char nd_lib_nn[];

/* ---- inside the checker: values, scopes, frames -------------------------- */

typedef struct ck_gone {             /* an axis that a value lost, and where */
    nd_axis *axis;
    nd_loc loc;
    const char *how;                 /* "summed away" */
    int n;                           /* length of the list from here */
    struct ck_gone *next;
} ck_gone;

typedef enum { VAL_BAD, VAL_CONST, VAL_TENSOR, VAL_TUPLE } ck_kind;

typedef struct ck_val {              /* what an expression means */
    ck_kind kind;                    /* BAD: an error has been reported */
    nd_dtype dtype;                  /* const: bool, i32 or f32, weak */
    int64_t i;                       /* const, not float */
    double f;                        /* const, always */
    nd_value *v;                     /* tensor */
    bool idx;                        /* made from index and constants alone */
    bool exact;                      /* written cast[f32](..): its products */
                                     /* stay in f32 under any precision */
    bool weak;                       /* made from literals alone: the dtype */
                                     /* may still grow in `repeat` */
    ck_gone *gone;
    int n;                           /* tuple */
    struct ck_val *item;
} ck_val;

typedef struct ck_bind {             /* a name that means one or more axes */
    const char *name;
    nd_loc loc;                      /* where it is declared */
    int n;
    nd_axis **axis;
    nd_loc *at;                      /* group: where the call names each */
    struct ck_bind **src;            /* group: what that name meant there */
    bool group;
    struct ck_bind *next;
} ck_bind;

typedef struct ck_axes {             /* the axes in a bracket, spelled out */
    int n;
    nd_axis *a[ND_MAX_RANK];
    nd_loc at[ND_MAX_RANK];
    ck_bind *src[ND_MAX_RANK];
} ck_axes;

typedef struct ck_child {            /* an instance made in a scope */
    const char *name, *fn;
    int number;                      /* the k of fn_k, 1 for fn itself */
    nd_loc at;                       /* where it is named, or called */
} ck_child;

typedef struct ck_scope ck_scope;
typedef struct ck_var {
    const char *name;
    nd_loc loc;
    ck_val val;
    bool let;
    ast_expr *param;                 /* `x = param`, not read so far */
    ck_axes left, right;             /* its axes */
    ck_scope *scope;                 /* where it was declared */
    struct ck_var *next;
} ck_var;

struct ck_scope {                    /* a function body or a repeat body */
    ck_scope *up;                    /* within the same function */
    const char *path;                /* instance path, "" at the top */
    ck_var *vars;
    ck_bind *binds;
    ND_VEC(ck_child) children;
};

typedef struct ck_let {              /* a `let` that was asked for */
    const ast_decl *decl;
    ck_val val;
} ck_let;

typedef struct ck_file {
    int id;                          /* in the context */
    ast_file *ast;                   /* NULL: it has errors */
    bool lib;                        /* came with the compiler */
    ND_VEC(struct ck_file *) uses;
    ND_VEC(nd_loc) use_at;           /* where it says so */
    ND_VEC(ck_bind *) axes;          /* those that were asked for */
    ND_VEC(ck_let) lets;
    ND_VEC(ast_decl *) busy;         /* axis or let being worked out */
} ck_file;

typedef struct ck_frame {            /* a function being instantiated */
    struct ck_frame *up;
    ck_file *file;
    const ast_decl *fn;              /* NULL: a file's own expressions */
    const char *label;               /* "linear[d -> heads]" */
    nd_loc call, user_loc;           /* the call; the call in user code */
    ck_scope *scope;
    ck_val ret;
    bool returned, shared;           /* shared: instantiated by `like` */
    bool is_main;                    /* the model that is compiled */
} ck_frame;

typedef struct ck_param {
    const char *path;
    nd_param *p;
    nd_value *v;                     /* as the program sees it: the slice */
    ck_axes left, right;
    ck_scope *scope;                 /* where it is declared */
    bool arrow, fan_known;
    nd_loc loc;
} ck_param;

typedef struct ck_copy {             /* a second name for an axis */
    nd_axis *of, *copy;
    bool used;
} ck_copy;

typedef struct ck_said {             /* an error that is out */
    nd_loc at;
    const char *fmt;
} ck_said;

typedef struct ck_asked {            /* a name that nothing has */
    const ck_file *file;
    const ast_decl *fn;
    const char *what, *name;
} ck_asked;

/* Bounds on what is evaluated, so that no input takes for ever. */
enum {
    CK_MAX_DEPTH = 1500, CK_MAX_CALLS = 20000,
    CK_MAX_DECLS = 10000, CK_MAX_STMTS = 10000
};

typedef struct ck {
    nd_ctx *ctx;
    nd_module *m;
    nd_builder b;
    const nd_front_options *opt;
    ck_file *main;
    ND_VEC(ck_file *) files;
    ck_frame *f;
    int nrep;                        /* repeats that are open */
    nd_op *rep[ND_MAX_REPEAT];
    const char *rep_path[ND_MAX_REPEAT];
    ND_VEC(ck_param) params;
    ND_VEC(ck_copy) copies;
    ND_VEC(nd_loc) warned;
    ND_VEC(nd_axis *) unsized;       /* in error: they have the size 1 */
    ND_VEC(ck_said) said;
    ND_VEC(ck_asked) asked;
    bool quiet;                      /* the last error was out already */
    bool huge;                       /* a value is too large: said once */
    bool mesh_refused;               /* one of its axes: rules may name it */
    ND_VEC(const char *) streams;
    int depth, calls;
    bool const_only;                 /* only compile-time constants */
} ck;

/* check.c: files, names, declarations */
void ck_error(ck *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The same, with `at` as the place even inside the library. */
void ck_say(ck *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Belongs to the error before it. */
void ck_note(ck *c, nd_loc at, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
void ck_later(ck *c, nd_loc at, const char *what);   /* "not supported yet" */
/* False where a warning about this place is out. */
bool ck_warn_once(ck *c, nd_loc at);
/* `at`, or inside the library the user's call. */
nd_loc ck_place(const ck *c, nd_loc at);
void ck_at(ck *c, nd_loc at);        /* where the next ops come from */
const char *ck_type(ck *c, const nd_type *t);
ck_var *ck_find_var(ck *c, const char *name);
ck_bind *ck_find_bind(ck *c, const char *name);
const ast_decl *ck_find_fn(ck *c, const char *name, ck_file **file);
bool ck_find_let(ck *c, const char *name, ck_val *out);
void ck_unknown(ck *c, nd_loc at, const char *what, const char *name);
/* The product of the sizes; false if it does not fit in 64 bits. */
bool ck_count(int n, nd_axis *const *axis, int64_t *out);
bool ck_any_unsized(const ck *c, int n, nd_axis *const *axis);
bool ck_axis_size(ck *c, ast_expr *e, int64_t *out);
ck_bind *ck_declare_axis(ck *c, ast_name name, ast_expr *e, ck_bind **list);
/* Spells out the axes of a bracket; false after an error. */
bool ck_bracket(ck *c, const ast_items *v, ck_axes *out);
/* The same where each axis goes to a name of its own: one may come twice. */
bool ck_bracket_each(ck *c, const ast_items *v, ck_axes *out);

/* check_expr.c: expressions, elementwise ops */
ck_val ck_bad(void);
ck_val ck_num(nd_dtype t, double f);
ck_val ck_int(int64_t i);
ck_val ck_tensor(nd_value *v);
ck_val ck_expr(ck *c, ast_expr *e);
ck_val ck_ew(ck *c, nd_ew op, nd_loc at, ck_val x, ck_val y);
bool ck_is_value(ck *c, nd_loc at, ck_val x);    /* const or tensor */
/* A literal. `h = 0` stays one in an outer repeat, where it is a tensor. */
bool ck_weak(ck_val x);
nd_value *ck_strong(ck *c, ck_val x, nd_dtype t);    /* tensor of dtype t */
/* bf16 and f16 are computed with in f32: the operand, and the result back. */
ck_val ck_widen(ck *c, ck_val x);
ck_val ck_narrow(ck *c, ck_val x, nd_dtype t);
nd_dtype ck_dtype(ck_val x);
int ck_class(nd_dtype t);            /* 0 bool, 1 integer, 2 float */
bool ck_common(ck *c, nd_loc at, ck_val x, ck_val y, nd_dtype *t);
ck_gone *ck_lose(ck *c, ck_gone *list, nd_axis *a, nd_loc at,
                 const char *how);
ck_gone *ck_merge(ck *c, ck_gone *x, ck_gone *y);
void ck_outer_warning(ck *c, nd_loc at, ck_val x, ck_val y);

/* check_axes.c: reductions and products */
ck_val ck_reduction(ck *c, ast_expr *e, const char *name, ast_brk *brk);
bool ck_has_axes(ck *c, ck_val x, const ck_axes *ax);

/* builtin.c: the table of forms */
typedef struct ck_form {
    const char *name;                /* of a built-in function, or "" */
    const char *form, *meaning;
} ck_form;
bool ck_form_at(nd_arena *a, int i, ck_form *out);   /* false: no more */
bool ck_is_builtin(const char *name);
int ck_ew_function(const char *name);    /* exp, maximum ...: nd_ew; or -1 */

/* check_builtin.c: indexing, the other built-in functions */
ck_val ck_builtin(ck *c, ast_expr *e, const char *name, ast_brk *brk);
ck_val ck_index(ck *c, ast_expr *e);
void ck_missing(ck *c, nd_axis *a, nd_loc at, ck_bind *src, ck_val x);

/* check_shape.c: split, stack, shift, top_k and the like */
bool ck_is_shape(const char *name);
ck_val ck_shape(ck *c, ast_expr *e, const char *name, ast_brk *brk);
ck_val ck_slice(ck *c, ast_expr *e, ck_val x);   /* x[a -> b: p..q] */

/* check_random.c: dropout(x, p), random_normal[axes] */
ck_val ck_dropout(ck *c, ast_expr *e);
ck_val ck_random_normal(ck *c, ast_expr *e);

/* check_call.c: instances of functions, parameters */
ck_val ck_call(ck *c, ast_expr *e);
const char *ck_instance(ck *c, ast_expr *e, const char *fn);
bool ck_run_body(ck *c, const ast_stmts *body);
void ck_force(ck *c, ck_var *v);     /* makes a parameter that is read */
void ck_force_all(ck *c);
ck_param *ck_param_of(ck *c, const nd_value *v);

/* check_stmt.c: statements */
void ck_stmts(ck *c, const ast_stmts *body);
ck_var *ck_assign(ck *c, ast_name name, ck_val v, bool let);

/* check_config.c: configuration values */
bool ck_cfg_num(ck *c, ast_expr *e, double *out);    /* finite */
bool ck_cfg_at_least(ck *c, ast_expr *e, double lo, double *out);
bool ck_cfg_int(ck *c, ast_expr *e, int64_t lo, int64_t *out);
bool ck_cfg_bool(ck *c, ast_expr *e, bool *out);
bool ck_cfg_str(ck *c, ast_expr *e, const char **out);
/* Which of the names `e` is, or is a call of; -1 after an error. */
int ck_cfg_choose(ck *c, ast_expr *e, const char *what,
                  const char *const *names, int n);
/* An entry that has one form: name(...). */
bool ck_cfg_form(ck *c, const ast_expr *e, const char *entry,
                 const char *name, const char *form);
/* Sorts a call's arguments into slots by position or name. */
bool ck_cfg_args(ck *c, const char *what, const ast_args *args,
                 const char *const *names, int n, ast_expr **out);
/* `word`, or an error where it is `word(args)`. */
bool ck_cfg_word(ck *c, const ast_expr *e);
void ck_near_error(ck *c, nd_loc at, const char *what, const char *name,
                   const char *const *cand, int n);

/* check_train.c, check_plan.c */
/* The axis that `train { over }` names, else `batch` as the model's file has
 * it. */
void ck_sample_axis(ck *c, const ast_decl *train, ck_file *model);
void ck_train(ck *c, const ast_decl *train);
void ck_plan(ck *c, const ast_decl *plan);
/* By name; -1 and NULL after an error. */
int ck_mesh_axis(ck *c, ast_name n);
nd_axis *ck_model_axis(ck *c, ast_name n);

/* check_scope.c: which rules there are, and for which values */
void ck_shard(ck *c, const ast_pent *e);
void ck_zero(ck *c, const ast_pent *e);
void ck_scopes(ck *c);               /* once all lines are read */

/* check_pipeline.c */
void ck_pipeline(ck *c, const ast_pent *e);
void ck_microbatches(ck *c, ast_expr *e);
void ck_pipeline_conflicts(ck *c);   /* once all lines are read */
void ck_pipeline_numbers(ck *c);     /* once the microbatches are counted */

/* check_context.c */
void ck_context(ck *c, const ast_pent *e);

/* ndc.c: to the file `path`, or to stdout; never over what was read. */
bool nd_write(nd_ctx *c, const char *path, const char *s, size_t n);

#endif
