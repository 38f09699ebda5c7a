#include "simgpu/sim.h"

#include <string.h>

static const struct sg_model models[] = {
#define SG_MODEL(key_, name_)                                                                                          \
    {                                                                                                                  \
        .key = key_, .name = name_,
#define SG_FIGURE(field, value, source) .field = value,
#define SG_MODEL_END                                                                                                   \
    }                                                                                                                  \
    ,
#include "simgpu/models.def"
#undef SG_MODEL
#undef SG_FIGURE
#undef SG_MODEL_END
};

const struct sg_model *sg_model_find(const char *key, size_t key_bytes)
{
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++)
        if (strlen(models[i].key) == key_bytes && !memcmp(models[i].key, key, key_bytes))
            return &models[i];
    return NULL;
}

const char *sg_model_names(void)
{
    static const char names[] =
#define SG_MODEL(key_, name_) key_ ", "
#define SG_FIGURE(field, value, source)
#define SG_MODEL_END
#include "simgpu/models.def"
#undef SG_MODEL
#undef SG_FIGURE
#undef SG_MODEL_END
        ;
    static char text[sizeof names]; /* without what follows the last name */
    memcpy(text, names, sizeof names - 3);
    return text;
}
