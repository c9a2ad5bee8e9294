// The words of the language, which need no header.
#pragma once

#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#define __cbuf__
#define __ca__
#define __cb__
#define __cc__
#define __fbuf__
#define __ssbuf__
#define __vector__
#define __cube__
#define __mix__(...)
#define __schedmode__(...)
#define __inout_pipe__(...)
#define __in_pipe__(...)
#define __out_pipe__(...)
