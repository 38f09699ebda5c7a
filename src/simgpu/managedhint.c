/* Advice about managed memory, and what can be asked of ranges. */
#include "simgpu/managed.h"

#include <string.h>

struct pages { /* those of a range, from first to last */
    struct sg_managed_page *at;
    size_t count;
};

static bool pages_of(uint64_t va, uint64_t bytes, struct pages *out)
{
    struct sg_alloc *a = sg_managed_at(va, bytes);
    if (!a)
        return false;
    size_t first = (va - a->region.va) / SG_CPU_PAGE_BYTES, last = (va + bytes - 1 - a->region.va) / SG_CPU_PAGE_BYTES;
    *out = (struct pages){a->managed->page + first, last - first + 1};
    return true;
}

/* The bit of a processor; 0: there is none there. */
static CUresult accessor(const CUmemLocation *l, uint32_t *bit_out)
{
    if (l->type == CU_MEM_LOCATION_TYPE_HOST) {
        *bit_out = SG_ACCESSED_BY_HOST;
        return CUDA_SUCCESS;
    }
    if (l->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->id < 0 || l->id >= sg.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *bit_out = UINT32_C(1) << l->id;
    return CUDA_SUCCESS;
}

static CUresult advise(CUdeviceptr va, size_t bytes, CUmem_advise advice, const CUmemLocation *location)
{
    struct pages p;
    struct sg_managed_place place = {0};
    uint32_t bit = 0;
    CUresult r = sg_enter("cuMemAdvise");
    if (r)
        return r;
    if (!pages_of(va, bytes, &p))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION)
        r = sg_managed_place_of(location, &place);
    if (advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY)
        r = accessor(location, &bit);
    for (size_t i = 0; i < p.count && !r; i++) {
        switch (advice) {
        case CU_MEM_ADVISE_SET_READ_MOSTLY: p.at[i].read_mostly = true; break;
        case CU_MEM_ADVISE_UNSET_READ_MOSTLY: p.at[i].read_mostly = false; break;
        case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
        case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION: p.at[i].preferred = place; break;
        case CU_MEM_ADVISE_SET_ACCESSED_BY: p.at[i].accessed_by |= bit; break;
        case CU_MEM_ADVISE_UNSET_ACCESSED_BY: p.at[i].accessed_by &= ~bit; break;
        default: r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    return sg_leave(r);
}

CUresult cuMemAdvise(CUdeviceptr va, size_t count, CUmem_advise advice, CUdevice device)
{
    CUmemLocation at = {.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                        .id = device == CU_DEVICE_CPU ? 0 : device};
    return advise(va, count, advice, &at);
}

CUresult cuMemAdvise_v2(CUdeviceptr va, size_t count, CUmem_advise advice, CUmemLocation location)
{
    return advise(va, count, advice, &location);
}

/* ---- asking ---- */

/* The place that all pages have in common; type 0: there is none. */
static struct sg_managed_place common(const struct pages *p, bool prefetched)
{
    struct sg_managed_place first = prefetched ? p->at[0].prefetched : p->at[0].preferred;
    for (size_t i = 1; i < p->count; i++) {
        struct sg_managed_place other = prefetched ? p->at[i].prefetched : p->at[i].preferred;
        if (other.type != first.type || other.id != first.id)
            return (struct sg_managed_place){0};
    }
    return first;
}

static CUresult put_accessors(int *list, size_t room, const struct pages *p)
{
    uint32_t all = UINT32_MAX;
    for (size_t i = 0; i < p->count; i++)
        all &= p->at[i].accessed_by;
    size_t n = 0;
    if (all & SG_ACCESSED_BY_HOST && n < room)
        list[n++] = CU_DEVICE_CPU;
    for (int d = 0; d < sg.device_count; d++)
        if (all >> d & 1 && n < room)
            list[n++] = d;
    while (n < room)
        list[n++] = CU_DEVICE_INVALID;
    return CUDA_SUCCESS;
}

static CUresult get(void *data, size_t bytes, CUmem_range_attribute attribute, const struct pages *p)
{
    int value = 1;
    if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY)
        return data && bytes && bytes % sizeof(int) == 0 ? put_accessors(data, bytes / sizeof(int), p)
                                                         : CUDA_ERROR_INVALID_VALUE;
    bool prefetched = attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION ||
                      attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE ||
                      attribute == CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID;
    struct sg_managed_place place = common(p, prefetched);
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
        for (size_t i = 0; i < p->count; i++)
            value &= p->at[i].read_mostly;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
        value = place.type == CU_MEM_LOCATION_TYPE_DEVICE ? place.id : place.type ? CU_DEVICE_CPU : CU_DEVICE_INVALID;
        break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE: value = place.type; break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID: value = place.id; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (!data || bytes != sizeof value)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

CUresult cuMemRangeGetAttribute(void *data, size_t bytes, CUmem_range_attribute attribute, CUdeviceptr va, size_t count)
{
    struct pages p;
    CUresult r = sg_enter("cuMemRangeGetAttribute");
    if (r)
        return r;
    return sg_leave(pages_of(va, count, &p) ? get(data, bytes, attribute, &p) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemRangeGetAttributes(void **data, size_t *bytes, CUmem_range_attribute *attributes, size_t attribute_count,
                                 CUdeviceptr va, size_t count)
{
    struct pages p;
    CUresult r = sg_enter("cuMemRangeGetAttributes");
    if (r)
        return r;
    if (!data || !bytes || !attributes || !attribute_count || !pages_of(va, count, &p))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < attribute_count && !r; i++)
        r = get(data[i], bytes[i], attributes[i], &p);
    return sg_leave(r);
}
