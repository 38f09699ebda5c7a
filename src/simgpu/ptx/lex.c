#include "simgpu/ptx/lex.h"

#include <stdlib.h>
#include <string.h>

static bool is_ident(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '$';
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static int hex_value(char c)
{
    if (is_digit(c))
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

/* Skips blanks, comments and line ends. False at an unclosed comment. */
static bool skip_space(struct ptx_lexer *lexer)
{
    while (lexer->at < lexer->end) {
        char c = *lexer->at;
        if (c == '\n') {
            lexer->line++;
            lexer->at++;
        } else if (c == ' ' || c == '\t' || c == '\r' || c == '\v' || c == '\f') {
            lexer->at++;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '/') {
            while (lexer->at < lexer->end && *lexer->at != '\n')
                lexer->at++;
        } else if (c == '/' && lexer->end - lexer->at > 1 && lexer->at[1] == '*') {
            for (lexer->at += 2;; lexer->at++) {
                if (lexer->end - lexer->at < 2) {
                    lexer->at = lexer->end;
                    return false;
                }
                if (lexer->at[0] == '*' && lexer->at[1] == '/')
                    break;
                lexer->line += *lexer->at == '\n';
            }
            lexer->at += 2;
        } else {
            break;
        }
    }
    return true;
}

static bool lex_hex_bits(struct ptx_token *token, unsigned digits)
{
    if (token->bytes != digits + 2)
        return false;
    for (unsigned i = 0; i < digits; i++) {
        int value = hex_value(token->text[2 + i]);
        if (value < 0)
            return false;
        token->integer = token->integer << 4 | (unsigned)value;
    }
    token->kind = PTX_TOKEN_FLOAT;
    token->bits_bytes = (uint8_t)(digits / 2);
    return true;
}

static bool lex_integer(struct ptx_token *token)
{
    const char *text = token->text;
    size_t bytes = token->bytes, i = 0;
    unsigned base = 10;
    if (bytes > 1 && (text[bytes - 1] == 'U' || text[bytes - 1] == 'u'))
        bytes--;
    if (bytes > 2 && text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
        base = 16, i = 2;
    else if (bytes > 2 && text[0] == '0' && (text[1] == 'b' || text[1] == 'B'))
        base = 2, i = 2;
    else if (bytes > 1 && text[0] == '0')
        base = 8, i = 1;
    for (; i < bytes; i++) {
        int digit = hex_value(text[i]);
        if (digit < 0 || (unsigned)digit >= base)
            return false;
        if (__builtin_mul_overflow(token->integer, (uint64_t)base, &token->integer) ||
            __builtin_add_overflow(token->integer, (uint64_t)digit, &token->integer))
            return false;
    }
    token->kind = PTX_TOKEN_INTEGER;
    return true;
}

static bool lex_decimal_float(struct ptx_token *token)
{
    char text[64], *end;
    if (token->bytes >= sizeof(text))
        return false;
    memcpy(text, token->text, token->bytes);
    text[token->bytes] = '\0';
    token->number = strtod(text, &end);
    token->kind = PTX_TOKEN_FLOAT;
    return *end == '\0';
}

static void lex_number(struct ptx_lexer *lexer, struct ptx_token *token)
{
    const char *at = lexer->at;
    bool is_float = false;
    bool is_hex = lexer->end - at > 1 && at[0] == '0' && strchr("xXfFdD", at[1]) && at[1];
    for (; at < lexer->end; at++) {
        bool is_exponent_sign = (*at == '+' || *at == '-') && is_float && (at[-1] == 'e' || at[-1] == 'E');
        if (!is_hex && *at == '.' && !is_float)
            is_float = true;
        else if (!is_hex && (*at == 'e' || *at == 'E') && at + 1 < lexer->end)
            is_float = true;
        else if (!is_ident(*at) && !is_exponent_sign)
            break;
    }
    token->bytes = (size_t)(at - lexer->at);
    lexer->at = at;
    bool good;
    if (is_float)
        good = lex_decimal_float(token);
    else if (token->bytes > 1 && token->text[0] == '0' && (token->text[1] == 'f' || token->text[1] == 'F'))
        good = lex_hex_bits(token, 8);
    else if (token->bytes > 1 && token->text[0] == '0' && (token->text[1] == 'd' || token->text[1] == 'D'))
        good = lex_hex_bits(token, 16);
    else
        good = lex_integer(token);
    if (!good)
        token->kind = PTX_TOKEN_BAD;
}

static void lex_string(struct ptx_lexer *lexer, struct ptx_token *token)
{
    const char *at = lexer->at + 1;
    while (at < lexer->end && *at != '"' && *at != '\n')
        at += *at == '\\' && lexer->end - at > 1 ? 2 : 1;
    if (at < lexer->end && *at == '"') {
        token->kind = PTX_TOKEN_STRING;
        token->text = lexer->at + 1;
        token->bytes = (size_t)(at - token->text);
        lexer->at = at + 1;
    } else {
        token->bytes = 1;
        lexer->at++;
    }
}

void ptx_lex_next(struct ptx_lexer *lexer, struct ptx_token *token_out)
{
    bool closed = skip_space(lexer);
    *token_out = (struct ptx_token){.kind = PTX_TOKEN_BAD, .text = lexer->at, .line = lexer->line};
    if (lexer->at >= lexer->end || *lexer->at == '\0') {
        token_out->kind = closed ? PTX_TOKEN_END : PTX_TOKEN_BAD;
        return;
    }
    char c = *lexer->at;
    char next = lexer->end - lexer->at > 1 ? lexer->at[1] : '\0';
    if (is_digit(c)) {
        lex_number(lexer, token_out);
    } else if (is_ident(c) || (c == '%' && is_ident(next))) {
        const char *at = lexer->at + 1;
        while (at < lexer->end && is_ident(*at))
            at++;
        token_out->kind = PTX_TOKEN_IDENT;
        token_out->bytes = (size_t)(at - lexer->at);
        lexer->at = at;
    } else if (c == '.' && is_ident(next)) {
        const char *at = lexer->at + 1;
        while (at < lexer->end && (is_ident(*at) || (*at == ':' && lexer->end - at > 2 && at[1] == ':')))
            at += *at == ':' ? 2 : 1;
        token_out->kind = PTX_TOKEN_DOTTED;
        token_out->text = lexer->at + 1;
        token_out->bytes = (size_t)(at - token_out->text);
        lexer->at = at;
    } else if (c == '"') {
        lex_string(lexer, token_out);
    } else if (strchr("@!|{}()[],;:+-<>=~*/&^?%", c)) {
        token_out->kind = PTX_TOKEN_PUNCT;
        token_out->punct = c;
        token_out->bytes = 1;
        lexer->at++;
    } else {
        token_out->bytes = 1;
        lexer->at++;
    }
}
