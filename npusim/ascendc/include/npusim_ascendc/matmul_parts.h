// What a Matmul is made of: its operands in L1 and L0, and how vector cores call for it.
#pragma once

#include <functional>
#include <map>
#include <vector>

#include "npusim_ascendc/matmul_options.h"
#include "npusim_ascendc/buffers.h"
#include "npusim_ascendc/queue.h"

namespace npusim {

constexpr uint32_t FRACTAL_ROWS = 16;

template <typename T>
constexpr uint32_t C0 = BLOCK_BYTES * 8 / TypeOf<T>::bits;

template <typename T>
constexpr uint32_t bytes_of(uint32_t count)
{
    return uint64_t(count) * TypeOf<T>::bits / 8;
}

constexpr uint32_t ceil_div(uint32_t value, uint32_t by)
{
    return (value + by - 1) / by;
}

constexpr uint32_t align_up(uint32_t value, uint32_t to)
{
    return ceil_div(value, to) * to;
}

// What TPipe::current() is while an object of the library works with buffers of its own.
class Within {
public:
    explicit Within(AscendC::TPipe& pipe) : outer_(npusim_core()->pipe)
    {
        npusim_core()->pipe = &pipe;
    }
    ~Within()
    {
        npusim_core()->pipe = outer_;
    }

private:
    void* outer_;
};

// Lines of a matrix that are multiplied, and the lines of k behind each other in each of them.
struct Part {
    uint32_t line;
    uint32_t lines;
    uint32_t k;
    uint32_t depth;
};

// A whole matrix in global memory.
template <typename T>
struct InMemory {
    AscendC::GlobalTensor<T> matrix;
    uint32_t lines_in_all = 0;
    uint32_t k_in_all = 0;
};

// One operand: its piece in L1 stays there until another one is asked for.
template <typename TYPE, AscendC::TPosition IN_L1, AscendC::TPosition IN_L0, bool IS_RIGHT>
class Factor : public InMemory<typename TYPE::T> {
    using T = typename TYPE::T;

public:
    using InMemory<T>::matrix;
    using InMemory<T>::lines_in_all;
    using InMemory<T>::k_in_all;
    bool is_turned = TYPE::isTrans;

    void claim(AscendC::TPipe& pipe, uint32_t lines, uint32_t depth, uint32_t step,
               uint32_t pieces, bool twice)
    {
        uint32_t whole = align_up(lines, FRACTAL_ROWS > C0<T> ? FRACTAL_ROWS : C0<T>);
        uint32_t most = C0<T> > FRACTAL_ROWS ? C0<T> : FRACTAL_ROWS;
        chunk_ = depth * step;
        pipe.InitBuffer(in_l1_, pieces, bytes_of<T>(whole * align_up(chunk_, most)));
        pipe.InitBuffer(in_l0_, twice ? 2 : 1, bytes_of<T>(whole * align_up(depth, most)));
    }
    AscendC::LocalTensor<T> take(const Part& part, uint32_t k_end)
    {
        load(part, k_end);
        auto tile = in_l0_.template AllocTensor<T>();
        uint32_t rows = k_is_first() ? part.depth : part.lines;
        uint32_t columns = k_is_first() ? part.lines : part.depth;
        uint32_t from = part.k - held_.k;
        record("LoadMatrix", tile, piece_, padded(k_is_first() ? held_.depth : held_.lines),
               k_is_first() ? from : 0, k_is_first() ? 0 : from, rows, columns, k_is_first());
        in_l0_.EnQue(tile);
        return in_l0_.template DeQue<T>();
    }
    void give_back(AscendC::LocalTensor<T>& tile)
    {
        in_l0_.FreeTensor(tile);
    }
    // Waits until all of it has been read.
    void settle()
    {
        forget();
        in_l1_.FreeAllEvent();
        in_l0_.FreeAllEvent();
    }
    void forget()
    {
        if (is_held_) {
            in_l1_.FreeTensor(piece_);
            is_held_ = false;
        }
    }

private:
    bool k_is_first() const
    {
        return is_turned != IS_RIGHT;
    }
    uint32_t padded(uint32_t rows) const
    {
        return align_up(rows, k_is_first() && C0<T> > FRACTAL_ROWS ? C0<T> : FRACTAL_ROWS);
    }
    void load(const Part& part, uint32_t k_end)
    {
        uint32_t k = part.k / chunk_ * chunk_;
        Part wanted{part.line, part.lines, k, k_end - k < chunk_ ? k_end - k : chunk_};
        if (is_held_ && held_.line == wanted.line && held_.k == k &&
            held_.lines == wanted.lines && held_.depth == wanted.depth) {
            return;
        }
        forget();
        piece_ = in_l1_.template AllocTensor<T>();
        held_ = wanted;
        if (k_is_first()) {
            fetch(k, wanted.line, wanted.depth, wanted.lines, lines_in_all, k_in_all);
        } else {
            fetch(wanted.line, k, wanted.lines, wanted.depth, k_in_all, lines_in_all);
        }
        in_l1_.EnQue(piece_);
        piece_ = in_l1_.template DeQue<T>();
        is_held_ = true;
    }
    void fetch(uint32_t row, uint32_t column, uint32_t rows, uint32_t columns, uint32_t width,
               uint32_t height)
    {
        if constexpr (TYPE::format == CubeFormat::NZ) {
            uint32_t high = align_up(height, FRACTAL_ROWS), whole = align_up(rows, FRACTAL_ROWS);
            record("DataCopyBlocks", piece_,
                   matrix[uint64_t(column / C0<T>) * high * C0<T> + row * C0<T>],
                   ceil_div(columns, C0<T>), whole, high - whole, padded(rows) - whole);
        } else {
            uint32_t pair = TypeOf<T>::bits < 8 ? 2 : 1;
            record("DataCopyNd2Nz", piece_, matrix[uint64_t(row) * width + column], 1, rows,
                   columns / pair, 0, width / pair, padded(rows), 1, 0);
        }
    }

    AscendC::TQue<IN_L1, 1> in_l1_;
    AscendC::TQue<IN_L0, 1> in_l0_;
    AscendC::LocalTensor<T> piece_;
    Part held_{};
    uint32_t chunk_ = 1;
    bool is_held_ = false;
};

// What has the buffers of a cube core, until another one takes them over.
class Owner {
public:
    virtual void settle() = 0;
};

// What the vector cores of a group want of its cube core.
struct Mailbox {
    std::vector<std::function<void()>> wanted;
    int ended = 0;
    bool is_done = false;
};

inline Mailbox& mailbox()
{
    static std::map<int32_t, Mailbox> boxes;
    return boxes[npusim_core()->group];
}

// Flags between the cube core and both of its vector cores (assumed).
enum ServiceFlag : uint16_t { WANTED = 7, SERVED = 8 };
constexpr int32_t OF_A_GROUP = 2;

// Lets the cube core of the group work, on a vector core; all of these call as often.
inline void serve(std::function<void()> work, bool is_last = false)
{
    Mailbox& box = mailbox();
    box.wanted.push_back(std::move(work));
    box.ended += is_last;
    npusim_cross_core_set(OF_A_GROUP, PIPE_MTE3, WANTED);
    npusim_cross_core_wait(OF_A_GROUP, PIPE_S, SERVED);
}

// Ends an object of a vector core, which answers on until those of the others have ended.
inline void serve_last(std::function<void()> work)
{
    serve(std::move(work), true);
    while (!mailbox().is_done) {
        serve([] {});
    }
}

// What a cube core does until all objects of its vector cores have come to their End.
inline void serve_group(int objects)
{
    Mailbox& box = mailbox();
    box = {};
    while (!box.is_done) {
        npusim_cross_core_wait(OF_A_GROUP, PIPE_S, WANTED);
        std::vector<std::function<void()>> now;
        now.swap(box.wanted);
        for (auto& work : now) {
            work();
        }
        box.is_done = box.ended == objects * npusim_core()->halves;
        npusim_cross_core_set(OF_A_GROUP, PIPE_FIX, SERVED);
    }
}

// How sums become what they are in global memory.
template <typename Sum, typename Out>
constexpr QuantMode_t mode_of(bool has_vector)
{
    if constexpr (std::is_same<Sum, Out>::value) {
        return NoQuant;
    } else if constexpr (std::is_same<Out, bfloat16_t>::value) {
        return F322BF16;
    } else if constexpr (std::is_same<Out, half>::value) {
        return std::is_same<Sum, float>::value ? F322F16 : has_vector ? VDEQF16 : DEQF16;
    } else if constexpr (std::is_same<Sum, float>::value) {
        return has_vector ? VQF322B8_PRE : QF322B8_PRE;
    } else {
        return has_vector ? VREQ8 : REQ8;
    }
}

template <typename Pipe>
void regist(Pipe*)
{}

template <typename Pipe, typename Object, typename Tiling, typename... More>
void regist(Pipe* pipe, Object& object, Tiling tiling, More&&... more)
{
    object.Init(tiling, pipe);
    regist(pipe, more...);
}

// Whether the core has done all that it is to do: a cube core whose vector cores call for it.
template <bool IS_CUBE_ONLY, typename Pipe, typename... Objects>
bool regist_or_serve(Pipe* pipe, Objects&&... objects)
{
    Core* core = npusim_core();
    if (!IS_CUBE_ONLY && core->kind == CUBE_CORE && core->halves != 0) {
        serve_group(sizeof...(Objects) / 2);
        return true;
    }
    if (core->kind == VECTOR_CORE && core->halves == 0) {
        npusim_refuse("REGIST_MATMUL_OBJ: a Matmul must be of a cube core or of vector cores with "
                      "one, not of vector cores alone; launch such cores");
    }
    regist(pipe, objects...);
    return false;
}

}  // namespace npusim

#ifdef ASCENDC_CUBE_ONLY
#define NPUSIM_CUBE_ONLY true
#else
#define NPUSIM_CUBE_ONLY false
#endif
#define REGIST_MATMUL_OBJ(tpipe, workspace, ...)                                \
    if (::npusim::regist_or_serve<NPUSIM_CUBE_ONLY>(tpipe, __VA_ARGS__)) {      \
        return;                                                                 \
    }

__aicore__ inline GM_ADDR GetSysWorkSpacePtr()
{
    static uint8_t none[32];
    void* given = npusim_core()->workspace;
    return given == nullptr ? none : static_cast<GM_ADDR>(given);
}
