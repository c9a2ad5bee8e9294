/* Types of the compiled engine: what Python hands in, and what a run keeps.
 *
 * The engine times the same steps by the same laws as `npusim.timing.pipes.lane` and
 * `npusim.timing.memory`, which define them and hold the reasons. Functions have the names that
 * they have there. All times are in cycles of the chip's clock; every number is whole, but for the
 * few that Python rounds from doubles, which are rounded here the same way.
 */
#ifndef NPUSIM_ENGINE_H
#define NPUSIM_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

typedef int32_t i32;
typedef int64_t i64;
/* Virtual time is counted in 2^40 parts of a cycle: more than 64 bits hold. */
typedef __int128 i128;

/* What Python calls; all else is the library's own. */
#ifdef _WIN32
#define EXPORTED __declspec(dllexport)
#else
#define EXPORTED __attribute__((visibility("default")))
#endif

/* ---- what Python hands in: flat tables of i64, row after row ---- */

enum { WORK, SET, WAIT, DRAIN, DRAIN_ALL, COPY, CROSS_SET };

/* `in_queue` as in `Step` of decode.py; `op` is its number in its body. */
typedef struct {
    i64 what, after, cycles, x, y, in_queue, op;
} Step;

/* A copy as its decoder knows it, `CopyStep`. */
typedef struct {
    i64 name, offset_bytes, is_read, gm_port, l2_port, piece_bytes, is_aliased, startup;
} CopyStep;

/* What a copy asks from a place within a line on; `lines` is null where they are a run. */
typedef struct {
    i64 nbytes, rows, hold_cycles, start, stop;
    const i64 *lines;
    const i64 *unkept;  /* how many bursts end in each line that is not kept, or null */
    i64 parted;  /* tiles of its lines that were parted, less those that were met again */
} Asked;

/* A stretch of a body that calls share, by which row of shifts it is moved on, and the number of the
 * first micro-op of its run within the body. */
typedef struct {
    i64 stretch, run, first_op;
} Part;

/* A call of a body: its parts, and the number of its first micro-op. */
typedef struct {
    i64 first_part, parts, first_op;
} Call;

/* A program: its calls, and how many parts these have. */
typedef struct {
    i64 first_call, parts, decoder;
} Code;

typedef struct {
    i64 first_copy, flags, first_cross_set, cross_core_cycles;
} Decoder;

/* What a name of global memory means to a lane; `different` as `Request.different`. */
typedef struct {
    i64 tensor, base_bytes, is_cached, different, is_early;
} Binding;

typedef struct {
    i64 code, cores;
} Member;

/* A copy: its number among the micro-ops, when the memory had the request and the last byte had
 * moved, what held it up, its share of what was read, when its pipe was free and its result there. */
typedef struct {
    i64 op, asked_at, moved, gm_narrow, l2_read_narrow, l2_write_narrow, turning, read, free, end;
} Fact;

/* Fills in what copy number `copy` asks from `phase` on; other than 0 stops the run. */
typedef int (*Ask)(i64 copy, i64 phase, Asked *asked);
/* Hears how many micro-ops have started; other than 0 stops the run. */
typedef int (*Report)(i64 started);

typedef struct {
    i64 pipes, scalar, mte1, mte1_queue, names, lanes, cross_flags, tensors;
    const Step *steps;
    /* A row of 2 + 2 pipes: cycles, instructions of mte1, then of each pipe the first of its steps
     * and their number. */
    const i64 *stretches;
    const CopyStep *copies;
    const i64 *cross_sets;  /* -> number of the flag between cores */
    const Decoder *decoders;
    const i64 *cross_flag_of;  /* (decoders, cross_flags) -> number of the decoder's flag, or -1 */
    const Code *codes;
    const Call *calls;
    const Part *parts;
    const i64 *shifts, *run_shifts;  /* (calls, names) and (runs, names), in bytes */
    const Member *members;  /* (lanes,) */
    const Binding *bindings;  /* (lanes, names) */
    /* For each lane and flag between cores: first hearer and setter, and one row more. */
    const i64 *first_hearer, *hearers, *first_setter, *setters;
    /* The L2 at launch; tensors one after the other, as many lines as `first_line` says. */
    const i64 *first_line;
    i32 *touched;  /* of each line, a row of the volumes below, or in a run the mark of a tile */
    const i64 *volumes;  /* volumes at which lines were touched before, ascending */
    i64 *absent;
    const i64 *shares;
    const i64 *stored;  /* volume when dirty bytes were stored, and how many, the oldest first */
    i64 volume_count, share_count, stored_count, holds_all;
    i64 line_bytes, capacity_bytes, run_bytes, ages, whole, share_units, count_units, port_units;
    /* Links: bandwidths in port units a cycle; a shared bus has one link for reads and writes. */
    i64 gm_read_width, gm_write_width, l2_read_width, l2_write_width, shared_bus;
    i64 gm_most_rested, l2_most_rested;
    i64 gm_read_latency, l2_read_latency, l2_write_latency;
    double gm_row_ns, gm_part_row_ns, l2_row_ns, same_line_ns, clock_hz, aliased_speed;
    i64 fill_weight;
    i64 events_per_report;
    volatile i64 stop;  /* set from another thread: the run ends before its next event */
    Ask ask;
    Report report;
    /* What comes out, from which the times of a lane follow without the others: of each of its
     * pipes, from `first_fact` on, what became of its copies, and of each lane, from `first_risen`
     * on, numbers and cycles of the flags of other cores that rose for it. */
    const i64 *first_fact, *first_risen;  /* (lanes, pipes), (lanes,) */
    Fact *facts;
    i64 *risen;  /* (flags that rise, 2) */
    i64 *risen_count, *last_end;  /* (lanes,) */
    i64 *counts;  /* (lanes, 3): l2_bytes, l2_hit_bytes, l2_written_bytes */
    i64 *waiting;  /* (lanes, pipes): the micro-op at which a pipe waits for ever, else -1 */
    i64 written_bytes;
    i64 *left;  /* of each line the volume when it was touched, or null where nobody asks */
    i64 volume;
} Problem;

enum { FINISHED = 0, STOPPED = 1, OUT_OF_MEMORY = 2 };

/* ---- what a run keeps ---- */

/* Why a pipe does not go on, if not for a flag, whose numbers start at 0. */
enum { READY = -1, WORKLESS = -2, COPYING = -3, DRAINING = -4, QUEUED = -5 };

/* Events in the order of SimPy: by cycle, priority, and the order in which they were made. */
typedef enum { ON_CROSS_SET, ON_REQUEST, ON_LINK, ON_END_OF_CYCLE } EventKind;
enum { NORMAL = 1, LAST = 9 };

typedef struct {
    i64 cycle, priority, number;
    EventKind kind;
    i64 a, b;
} Event;

typedef struct {
    i64 *items;
    i64 first, count, room;
} Queue;

struct Load;

/* A copy over a link; `load` is null where nobody waits for it. */
typedef struct {
    i128 ends;
    i64 number, loads, narrow_before, by_stores_before;
    struct Load *load;
    bool is_far, is_store;
} Moving;

typedef struct {
    i64 width, most_rested, rested, load, since, narrow, joined, plan, index, count, room;
    i64 stores, by_stores;  /* of the load, and of the narrow cycles, in parts of a cycle */
    i64 in_step;  /* reasons for which its users are in step at present */
    i128 virtual_time;
    bool is_planned;
    Moving *moving;
} Link;

/* A copy of a pipe on its way, `_Load` or a store. */
typedef struct Load {
    i64 lane, pipe, op, start, asked_at;
    const CopyStep *step;
    Asked *asked;
    const Binding *binding;
    i64 line;  /* added to the lines asked for */
    i64 far_bytes, under_way, since, read, arrives;
    i64 latest, latest_narrow, latest_by_stores;
    bool latest_is_far, is_queued, is_turned, is_in_step;
    i64 gm_narrow, l2_read_narrow, l2_write_narrow, turning;
} Load;

typedef struct {
    i64 hits, misses, fetched, read, arrives;
} Found;

/* What of the lines of a request is on its way for others: the shares, and in how many cycles the
 * first byte of the latest is there. */
typedef struct {
    i64 shares, arrives;
} Coming;

/* Lines that were touched last by one request: where they are counted from, and when that was, a
 * row of the volumes. */
typedef struct {
    i64 first;
    Asked *asked;
    i32 volume;
} Tile;

/* `part` counts those of the program, `of_call` those of the call, `passed` the instructions of mte1
 * in the parts before. */
typedef struct {
    i64 part, call, of_call, passed, position, free, done, waits_for, copies;
} Pipe;

typedef struct {
    const Code *code;
    const Decoder *decoder;
    const Binding *bindings;
    i64 cores, number;
    Pipe *pipes;
    Load *loads;  /* one a pipe */
    Queue opened, runnable;
    Queue left;  /* when each instruction left the queue of mte1, but for the first `forgotten` */
    i64 forgotten;
    Queue *raised;  /* one a flag */
    i64 *arrived;  /* (cross_flags,): sets that have arrived */
} Lane;

typedef struct {
    i64 copy, phase;
    Asked asked;
} Known;

/* Where the times of a lane go when it is replayed, `(ops,)` each. */
typedef struct {
    i64 *start, *free, *end;
} Times;

typedef struct {
    Problem *problem;
    const Times *times;  /* null while all lanes are timed */
    i64 now, event_number, started;
    Event *events;
    i64 event_count, event_room;
    Lane *lanes;
    Link links[4];
    Link *gm_reads, *gm_writes, *l2_reads, *l2_writes;
    /* What copies ask for, by copy and phase: an open table, its size a power of two. */
    Known **known;
    i64 known_count, known_room;
    /* Requests of the present cycle. */
    Load **asked;
    i64 asked_count;
    /* Of each line: how many cores miss it, and the share brought in, in the present cycle. */
    i32 *readers, *brought;
    i64 *missing;  /* of each line of the requests, the share */
    i64 missing_room;
    Found *found;
    i64 *first_missing, *most_missing;  /* of each request */
    Coming *coming;  /* of each request */
    i64 *fetched_at;  /* the cycle in which each line was fetched last */
    i32 *fetched;  /* the share of it that was */
    i64 last_fetch;  /* of those the latest */
    i64 volume;
    Queue volumes;  /* those at which lines were touched, each once, ascending */
    Tile *tiles;
    i64 tile_count, tile_room;
    bool has_new_tiles;  /* made in the present cycle */
    Queue free_tiles;  /* numbers of tiles that are none any more */
    Queue stored;  /* volume when bytes were stored, and how many, in turn */
    int failed;
} Run;

/* run.c */
Known *find_known(Run *run, i64 copy, i64 phase);

/* queue.c */
void *room_for(Run *run, void *items, i64 *room, i64 wanted, i64 size);
void give_back(void *items);
void push_far(Run *run, Queue *queue, i64 item);
void at(Run *run, i64 cycle, i64 priority, EventKind kind, i64 a, i64 b);
Event next_event(Run *run);

/* link.c */
void link_in_step(Run *run, Link *link, i64 more);
void link_join(Run *run, Link *link, i64 nbytes, i64 port, i64 load, Load *waiting, bool is_far,
               bool is_store);
void link_plan(Run *run, Link *link);
void link_leave(Run *run, Link *link, i64 plan);

/* l2.c */
void l2_touch(Run *run, Load **uses, i64 count, Found *found);
i64 l2_evicted(Run *run);
void l2_leave(Run *run);
Found l2_past(Run *run, const Load *load);

/* memory.c */
void memory_start(Run *run, Load *load);
void memory_serve(Run *run);
void memory_arrived(Run *run, Load *load, i64 narrow, i64 by_stores, bool is_far);

/* lane.c */
void lane_run(Run *run, Lane *lane);
void lane_raise(Run *run, Lane *lane, i64 cross_flag);
/* The number of the micro-op that a pipe has come to. */
i64 op_of(const Run *run, const Lane *lane, i64 pipe);
void lane_moved(Run *run, Load *load, i64 latency, i64 l2_bytes, i64 l2_hit_bytes,
                i64 l2_written_bytes);
void cross_set_arrived(Run *run, i64 lane, i64 cross_flag);

static inline void push(Run *run, Queue *queue, i64 item) {
    i64 end = queue->first + queue->count;
    if (end == queue->room) {
        push_far(run, queue, item);
        return;
    }
    queue->items[end] = item;
    queue->count++;
}

static inline i64 pop_first(Queue *queue) {
    queue->count--;
    return queue->items[queue->first++];
}

static inline i64 ceil_div(i64 a, i64 b) { return (a + b - 1) / b; }
static inline i64 larger(i64 a, i64 b) { return a > b ? a : b; }
static inline i64 smaller(i64 a, i64 b) { return a < b ? a : b; }

#endif
