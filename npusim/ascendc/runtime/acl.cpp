// The host's runtime: one card, whose memory is that of the simulator, and where all is done at once.
#include "acl/acl.h"

#include <cstdlib>
#include <cstring>

#include "npusim_ascendc/launch.h"
#include "npusim_ascendc/types.h"

namespace {

// What stands for contexts, streams and events, of which nothing is asked.
int handle;

aclError make(void** found)
{
    *found = &handle;
    return ACL_SUCCESS;
}

}  // namespace

extern "C" {

aclError aclInit(const char*)
{
    return ACL_SUCCESS;
}
aclError aclFinalize()
{
    return ACL_SUCCESS;
}
const char* aclGetRecentErrMsg()
{
    return "";
}
aclError aclrtSetDevice(int32_t)
{
    return ACL_SUCCESS;
}
aclError aclrtGetDevice(int32_t* deviceId)
{
    *deviceId = 0;
    return ACL_SUCCESS;
}
aclError aclrtResetDevice(int32_t)
{
    return ACL_SUCCESS;
}
aclError aclrtGetDeviceCount(uint32_t* count)
{
    *count = 1;
    return ACL_SUCCESS;
}
aclError aclrtSynchronizeDevice()
{
    return ACL_SUCCESS;
}
aclError aclrtCreateContext(aclrtContext* context, int32_t)
{
    return make(context);
}
aclError aclrtDestroyContext(aclrtContext)
{
    return ACL_SUCCESS;
}
aclError aclrtSetCurrentContext(aclrtContext)
{
    return ACL_SUCCESS;
}
aclError aclrtCreateStream(aclrtStream* stream)
{
    return make(stream);
}
aclError aclrtDestroyStream(aclrtStream)
{
    return ACL_SUCCESS;
}
aclError aclrtSynchronizeStream(aclrtStream)
{
    return ACL_SUCCESS;
}
aclError aclrtStreamWaitEvent(aclrtStream, aclrtEvent)
{
    return ACL_SUCCESS;
}
aclError aclrtCreateEvent(aclrtEvent* event)
{
    return make(event);
}
aclError aclrtCreateEventExWithFlag(aclrtEvent* event, uint32_t)
{
    return make(event);
}
aclError aclrtRecordEvent(aclrtEvent, aclrtStream)
{
    return ACL_SUCCESS;
}
aclError aclrtSynchronizeEvent(aclrtEvent)
{
    return ACL_SUCCESS;
}
aclError aclrtDestroyEvent(aclrtEvent)
{
    return ACL_SUCCESS;
}
aclError aclrtGetLastError(aclrtLastErrLevel)
{
    return ACL_SUCCESS;
}

aclError aclrtMalloc(void** devPtr, size_t size, aclrtMemMallocPolicy)
{
    if (devPtr == nullptr || size == 0) {
        return ACL_ERROR_INVALID_PARAM;
    }
    *devPtr = npusim::allocate(size);
    return *devPtr == nullptr ? ACL_ERROR_BAD_ALLOC : ACL_SUCCESS;
}
aclError aclrtFree(void* devPtr)
{
    npusim::release(devPtr);
    return devPtr == nullptr ? ACL_ERROR_INVALID_PARAM : ACL_SUCCESS;
}
aclError aclrtMallocHost(void** hostPtr, size_t size)
{
    *hostPtr = size == 0 ? nullptr : malloc(size);
    return *hostPtr == nullptr ? ACL_ERROR_INVALID_PARAM : ACL_SUCCESS;
}
aclError aclrtFreeHost(void* hostPtr)
{
    free(hostPtr);
    return ACL_SUCCESS;
}
aclError aclrtMemset(void* devPtr, size_t maxCount, int32_t value, size_t count)
{
    if (count > maxCount) {
        return ACL_ERROR_INVALID_PARAM;
    }
    memset(devPtr, value, count);
    return ACL_SUCCESS;
}
aclError aclrtMemsetAsync(void* devPtr, size_t maxCount, int32_t value, size_t count, aclrtStream)
{
    return aclrtMemset(devPtr, maxCount, value, count);
}
aclError aclrtMemcpy(void* dst, size_t destMax, const void* src, size_t count, aclrtMemcpyKind)
{
    if (count > destMax) {
        return ACL_ERROR_INVALID_PARAM;
    }
    memmove(dst, src, count);
    return ACL_SUCCESS;
}
aclError aclrtMemcpyAsync(void* dst, size_t destMax, const void* src, size_t count,
                          aclrtMemcpyKind kind, aclrtStream)
{
    return aclrtMemcpy(dst, destMax, src, count, kind);
}

float aclFloat16ToFloat(aclFloat16 value)
{
    return npusim::half_value(value);
}
aclFloat16 aclFloatToFloat16(float value)
{
    return npusim::half_bits(value);
}
}  // extern "C"
