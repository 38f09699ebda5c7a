/*
 * libexpat, opened when the first XML is read and never linked (docs/decisions.md). The types come from its header.
 */
#ifndef HR_FABRIC_PARSER_H
#define HR_FABRIC_PARSER_H

#include <expat.h>

#define HR_EXPAT_FUNCTIONS(X)                                                                                          \
    X(XML_ParserCreate)                                                                                                \
    X(XML_ParserFree)                                                                                                  \
    X(XML_SetUserData)                                                                                                 \
    X(XML_SetElementHandler)                                                                                           \
    X(XML_SetStartDoctypeDeclHandler)                                                                                  \
    X(XML_Parse)                                                                                                       \
    X(XML_StopParser)                                                                                                  \
    X(XML_GetErrorCode)                                                                                                \
    X(XML_ErrorString)                                                                                                 \
    X(XML_GetCurrentLineNumber)

struct hr_expat {
#define HR_EXPAT_FIELD(name) __typeof__(&name) name;
    HR_EXPAT_FUNCTIONS(HR_EXPAT_FIELD)
#undef HR_EXPAT_FIELD
};

/* The library's functions, or NULL: it is not on this machine. Opened once per process and kept. Locks: the loader's. */
const struct hr_expat *hr_expat(void);

#endif
