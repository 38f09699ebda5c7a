#include "residency/capture.h"
#include "hr_hooks.h"
#include "shim/shim.h"

/* Captures: when one begins and ends, and when a stream joins it. Questions about them pass. */

#define BEGIN(name, pt)                                                                                                \
    HR_HOOK(name)(CUstream hStream)                                                                                    \
    {                                                                                                                  \
        HR_PASS(name, hStream);                                                                                        \
        HR_INSIDE();                                                                                                   \
        hr_capture_beginning(hStream, (pt));                                                                           \
        return hr_capture_begun(hStream, (pt), CU_STREAM_CAPTURE_MODE_GLOBAL, hr_drv.name(hStream));                   \
    }
BEGIN(cuStreamBeginCapture, false)
BEGIN(cuStreamBeginCapture_ptsz, true)

#define BEGIN_V2(name, pt)                                                                                             \
    HR_HOOK(name)(CUstream hStream, CUstreamCaptureMode mode)                                                          \
    {                                                                                                                  \
        HR_PASS(name, hStream, mode);                                                                                  \
        HR_INSIDE();                                                                                                   \
        hr_capture_beginning(hStream, (pt));                                                                           \
        return hr_capture_begun(hStream, (pt), mode, hr_drv.name(hStream, mode));                                      \
    }
BEGIN_V2(cuStreamBeginCapture_v2, false)
BEGIN_V2(cuStreamBeginCapture_v2_ptsz, true)

#define BEGIN_TO_GRAPH(name, pt)                                                                                       \
    HR_HOOK(name)                                                                                                      \
    (CUstream hStream, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,         \
     size_t numDependencies, CUstreamCaptureMode mode)                                                                 \
    {                                                                                                                  \
        HR_PASS(name, hStream, hGraph, dependencies, dependencyData, numDependencies, mode);                           \
        HR_INSIDE();                                                                                                   \
        hr_capture_beginning(hStream, (pt));                                                                           \
        return hr_capture_begun(hStream, (pt), mode,                                                                   \
                                hr_drv.name(hStream, hGraph, dependencies, dependencyData, numDependencies, mode));    \
    }
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph, false)
BEGIN_TO_GRAPH(cuStreamBeginCaptureToGraph_ptsz, true)

#define END(name, pt)                                                                                                  \
    HR_HOOK(name)(CUstream hStream, CUgraph * phGraph)                                                                 \
    {                                                                                                                  \
        HR_PASS(name, hStream, phGraph);                                                                               \
        HR_INSIDE();                                                                                                   \
        CUresult r = hr_drv.name(hStream, phGraph);                                                                    \
        hr_capture_ended(hStream, (pt));                                                                               \
        return r;                                                                                                      \
    }
END(cuStreamEndCapture, false)
END(cuStreamEndCapture_ptsz, true)

#define WAIT(name, pt)                                                                                                 \
    HR_HOOK(name)(CUstream hStream, CUevent hEvent, unsigned int Flags)                                                \
    {                                                                                                                  \
        HR_PASS(name, hStream, hEvent, Flags);                                                                         \
        HR_INSIDE();                                                                                                   \
        bool joins = hr_capture_joining(hStream, (pt));                                                                \
        CUresult r = hr_drv.name(hStream, hEvent, Flags);                                                              \
        return joins ? hr_capture_joined(r) : r;                                                                       \
    }
WAIT(cuStreamWaitEvent, false)
WAIT(cuStreamWaitEvent_ptsz, true)
