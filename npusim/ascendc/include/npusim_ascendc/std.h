// The part of the standard library that the API has under a name of its own.
#pragma once

#include <tuple>
#include <type_traits>
#include <utility>

namespace AscendC {
namespace Std {

using std::add_const;
using std::add_const_t;
using std::add_cv;
using std::add_cv_t;
using std::add_lvalue_reference;
using std::add_lvalue_reference_t;
using std::add_pointer;
using std::add_pointer_t;
using std::add_rvalue_reference;
using std::add_rvalue_reference_t;
using std::add_volatile;
using std::add_volatile_t;
using std::bool_constant;
using std::conditional;
using std::conditional_t;
using std::decay;
using std::decay_t;
using std::declval;
using std::enable_if;
using std::enable_if_t;
using std::false_type;
using std::forward;
using std::get;
using std::ignore;
using std::index_sequence;
using std::integer_sequence;
using std::integral_constant;
using std::is_array;
using std::is_base_of;
using std::is_base_of_v;
using std::is_const;
using std::is_constructible;
using std::is_convertible;
using std::is_convertible_v;
using std::is_floating_point;
using std::is_integral;
using std::is_integral_v;
using std::is_pointer;
using std::is_reference;
using std::is_same;
using std::is_same_v;
using std::is_void;
using std::make_index_sequence;
using std::make_tuple;
using std::move;
using std::remove_const;
using std::remove_const_t;
using std::remove_cv;
using std::remove_cv_t;
using std::remove_pointer;
using std::remove_pointer_t;
using std::remove_reference;
using std::remove_reference_t;
using std::remove_volatile;
using std::remove_volatile_t;
using std::tie;
using std::true_type;
using std::tuple;
using std::tuple_element;
using std::tuple_element_t;
using std::tuple_size;
using std::tuple_size_v;

template <typename T>
using remove_cvref_t = remove_cv_t<remove_reference_t<T>>;

template <typename T, typename U>
constexpr T max(const T a, const U b)
{
    return a < T(b) ? T(b) : a;
}

template <typename T, typename U>
constexpr T min(const T a, const U b)
{
    return T(b) < a ? T(b) : a;
}

template <typename T>
T sqrt(const T value)
{
    return T(__builtin_sqrtf(float(value)));
}

template <typename T>
constexpr T abs(const T value)
{
    return value < T(0) ? -value : value;
}

template <typename T, typename U>
constexpr T ceil_division(const T a, const U b)
{
    return (a + b - 1) / b;
}

template <typename T, typename U>
constexpr T ceil_align(const T a, const U b)
{
    return ceil_division(a, b) * b;
}

template <typename T, typename U>
constexpr T floor_align(const T a, const U b)
{
    return a / b * b;
}

}  // namespace Std
}  // namespace AscendC
