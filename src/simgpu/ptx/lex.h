/* Tokens of PTX text. The lexer never fails: what it cannot read is a PTX_TOKEN_BAD, which the parser reports. */
#ifndef SG_PTX_LEX_H
#define SG_PTX_LEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ptx_token_kind {
    PTX_TOKEN_END,
    PTX_TOKEN_BAD,
    PTX_TOKEN_IDENT,   /* letters, digits, $ % _ */
    PTX_TOKEN_DOTTED,  /* .name; the text excludes the dot, may contain :: */
    PTX_TOKEN_INTEGER, /* integer */
    PTX_TOKEN_FLOAT,   /* decimal: number; 0f and 0d forms: bits in integer, exact in bits_bytes */
    PTX_TOKEN_STRING,
    PTX_TOKEN_PUNCT, /* one character: punct */
};

struct ptx_token {
    enum ptx_token_kind kind;
    const char *text;
    size_t bytes;
    unsigned line;
    char punct;
    uint8_t bits_bytes; /* of a FLOAT: 4 for 0f, 8 for 0d, 0 for decimal */
    uint64_t integer;
    double number;
};

struct ptx_lexer {
    const char *at, *end;
    unsigned line;
};

void ptx_lex_next(struct ptx_lexer *lexer, struct ptx_token *token_out);

#endif
