// Sorting of whole tensors, and the greatest elements of rows.
#pragma once

#include "npusim_ascendc/mathematics.h"

namespace AscendC {

enum class TopKMode { TOPK_NORMAL = 0, TOPK_NSMALL };
enum class SortType { RADIX_SORT, MERGE_SORT };
struct SortConfig {
    SortType type = SortType::RADIX_SORT;
    bool isDescend = false;
};
struct TopKInfo {
    int32_t outter = 1;
    int32_t inner;
    int32_t n;
};

namespace tiling {

// No page gives its fields; npusim needs none.
struct TopkTiling {
    int32_t inner = 0;
};

}  // namespace tiling

}  // namespace AscendC

using TopkTiling = AscendC::tiling::TopkTiling;

namespace npusim {

constexpr uint32_t SORTED = 32;       // elements that an instruction sorts
constexpr uint32_t PAIR_BYTES = 8;    // of a value and its index
constexpr uint32_t MOST_MERGED = 4095;  // pairs of a list

template <typename T>
constexpr uint32_t pair_elements()
{
    static_assert(sizeof(T) && __NPU_ARCH__ == 2201, "npusim: pairs of values and indices are those of Atlas A2 "
                                        "and A3; sort region proposals by RpSort16 and MrgSort4");
    return PAIR_BYTES / sizeof(T);
}

// Merges up to four sorted lists that lie one behind the other.
template <typename T>
void merge(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
           const uint32_t lengths[4], int lists)
{
    constexpr uint32_t own = pair_elements<T>();
    AscendC::LocalTensor<T> each[4];
    uint16_t counts[4] = {};
    uint32_t start = 0;
    for (int i = 0; i < lists; ++i) {
        if (lengths[i] > MOST_MERGED) {
            npusim_refuse("Sort: a list must have at most %u elements, not %u; sort fewer at once",
                          MOST_MERGED, lengths[i]);
        }
        each[i] = src[start * own];
        counts[i] = uint16_t(lengths[i]);
        start += lengths[i];
    }
    AscendC::MrgSortSrcList<T> sources(each[0], each[1], each[2], each[3]);
    AscendC::MrgSort(dst, sources, {counts, false, uint16_t((1 << lists) - 1), 1});
}

// One level: lists of `length`, the last of which may be shorter, become lists of four times that.
template <typename T>
void merge_level(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
                 uint32_t length, uint32_t count)
{
    constexpr uint32_t own = pair_elements<T>();
    for (uint32_t start = 0; start < count; start += 4 * length) {
        uint32_t lengths[4] = {};
        int lists = 0;
        for (uint32_t begin = start; begin < count && lists < 4; begin += length) {
            lengths[lists++] = count - begin < length ? count - begin : length;
        }
        if (lists == 1) {
            AscendC::DataCopy(dst[start * own], src[start * own], lengths[0] * own);
        } else {
            merge(dst[start * own], src[start * own], lengths, lists);
        }
    }
    step();
}

// Pairs of values and indices, the greatest first, in dst; `other` is as large.
template <typename T>
void sort(const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
          const AscendC::LocalTensor<uint32_t>& indices, const AscendC::LocalTensor<T>& other,
          uint32_t count)
{
    int levels = 0;
    for (uint32_t length = SORTED; length < count; length *= 4) {
        ++levels;
    }
    AscendC::LocalTensor<T> from = levels % 2 ? other : dst, to = levels % 2 ? dst : other;
    AscendC::Sort32(from, src, indices, int32_t(count / SORTED));
    step();
    for (uint32_t length = SORTED; length < count; length *= 4) {
        merge_level(to, from, length, count);
        std::swap(from, to);
    }
}

// Takes the values and the indices apart.
template <typename T>
void take_apart(const AscendC::LocalTensor<T>& values,
                const AscendC::LocalTensor<uint32_t>& indices,
                const AscendC::LocalTensor<T>& pairs, uint32_t count)
{
    constexpr uint8_t firsts = sizeof(T) == 4 ? 1 : 3, seconds = 2;
    uint64_t taken = 0;
    AscendC::GatherMask(values, pairs, firsts, true, count * pair_elements<T>(), {1, 1, 8, 8},
                        taken);
    AscendC::GatherMask(indices, pairs.template ReinterpretCast<uint32_t>(), seconds, true,
                        2 * count, {1, 1, 8, 8}, taken);
    step();
}

// The k greatest of a row, or the least, with their indices.
template <typename T>
void top_of_row(const AscendC::LocalTensor<T>& values, const AscendC::LocalTensor<int32_t>& found,
                const AscendC::LocalTensor<T>& row, const AscendC::LocalTensor<int32_t>& indices,
                uint32_t count, uint32_t k, bool is_largest, Scratch scratch)
{
    constexpr uint32_t own = pair_elements<T>();
    auto pairs = scratch.take<T>(count * own), other = scratch.take<T>(count * own);
    auto src = row;
    if (!is_largest) {
        src = scratch.take<T>(count);
        AscendC::Muls(src, row, T(-1.0f), int32_t(count));
        step();
    }
    sort(pairs, src, indices.template ReinterpretCast<uint32_t>(), other, count);
    take_apart(values, found.template ReinterpretCast<uint32_t>(), pairs, k);
    if (!is_largest) {
        AscendC::Muls(values, values, T(-1.0f), int32_t(k));
        step();
    }
}

template <bool HAS_INDICES, bool HAS_FINISHED, AscendC::TopKMode MODE, typename T>
void top_k(const AscendC::LocalTensor<T>& values, const AscendC::LocalTensor<int32_t>& found,
           const AscendC::LocalTensor<T>& src, const AscendC::LocalTensor<int32_t>& given,
           const AscendC::LocalTensor<bool>& finished, Scratch scratch, uint32_t k,
           const AscendC::TopKInfo& of, bool is_largest)
{
    constexpr bool is_small = MODE == AscendC::TopKMode::TOPK_NSMALL;
    constexpr uint32_t own = BLOCK_BYTES / sizeof(T);
    uint32_t pitch = is_small ? k : (k + own - 1) / own * own;
    uint32_t index_pitch = is_small ? k : (k + 7) / 8 * 8;
    if (is_small && (k * sizeof(T) % BLOCK_BYTES || k % 8) && of.outter > 1) {
        npusim_refuse("TopK: k of rows of TOPK_NSMALL must fill whole blocks, not be %u, since "
                      "npusim writes each row from a block on; use TOPK_NORMAL",
                      k);
    }
    auto indices = HAS_INDICES ? given : scratch.take<int32_t>(of.inner);
    if (!HAS_INDICES) {
        AscendC::CreateVecIndex(indices, 0, uint32_t(of.inner));
        step();
    }
    for (int32_t row = 0; row < of.outter; ++row) {
        auto own_indices = HAS_INDICES && is_small ? indices[row * of.inner] : indices;
        top_of_row(values[row * pitch], found[row * index_pitch], src[row * of.inner], own_indices,
                   of.inner, k, is_largest, scratch);
        if constexpr (HAS_FINISHED) {
            if (finished.GetValue(row)) {
                AscendC::Duplicate(found[row * index_pitch], of.n, int32_t(k));
                step();
            }
        }
    }
}

}  // namespace npusim

namespace AscendC {

// What Sort takes is src as it is.
template <typename T>
__aicore__ inline void Concat(LocalTensor<T>& concat, const LocalTensor<T>& src,
                              const LocalTensor<T>&, const int32_t)
{
    concat = src;
}

template <typename T, bool isFullSort>
__aicore__ inline void Sort(const LocalTensor<T>& dst, const LocalTensor<T>& concat,
                            const LocalTensor<uint32_t>& index, LocalTensor<T>& tmp,
                            const int32_t repeatTime)
{
    if (isFullSort) {
        npusim::sort(dst, concat, index, tmp, npusim::SORTED * repeatTime);
    } else {
        Sort32(dst, concat, index, repeatTime);
    }
}

template <typename T>
__aicore__ inline void Extract(const LocalTensor<T>& dstValue, const LocalTensor<uint32_t>& dstIndex,
                               const LocalTensor<T>& sorted, const int32_t repeatTime)
{
    npusim::take_apart(dstValue, dstIndex, sorted, npusim::SORTED * repeatTime);
}

#define NPUSIM_TOP_K(ROOM, SCRATCH)                                                               \
    template <typename T, bool isInitIndex = false, bool isHasfinish = false,                     \
              bool isReuseSrc = false, enum TopKMode topkMode = TopKMode::TOPK_NORMAL>            \
    __aicore__ inline void TopK(                                                                  \
        const LocalTensor<T>& dstValueLocal, const LocalTensor<int32_t>& dstIndexLocal,           \
        const LocalTensor<T>& srcLocal, const LocalTensor<int32_t>& srcIndexLocal,                \
        const LocalTensor<bool>& finishLocal, NPUSIM_UNPACKED ROOM const int32_t k,               \
        const TopkTiling& tilling, const TopKInfo& topKInfo, const bool isLargest = true)         \
    {                                                                                             \
        npusim::top_k<isInitIndex, isHasfinish, topkMode>(dstValueLocal, dstIndexLocal, srcLocal, \
                                                          srcIndexLocal, finishLocal, SCRATCH, k, \
                                                          topKInfo, isLargest);                   \
    }
NPUSIM_TOP_K((const LocalTensor<uint8_t>& tmpLocal, ), npusim::Scratch(tmpLocal))
NPUSIM_TOP_K((), npusim::Scratch())
#undef NPUSIM_TOP_K

}  // namespace AscendC
