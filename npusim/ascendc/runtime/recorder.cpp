// Runs the cores of a launch and hands what they record to the process that simulates them.
//
// Each core is a fiber. They run one after the other, each until it ends or waits for another one,
// so that what comes out is the same each time, and the order of the records is one in which they
// can be played. Descriptors that are the same have one number, and a record is a number, a core
// and an address.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "npusim_ascendc/driver.h"
#include "npusim_ascendc/recorder.h"

namespace {

// ---- messages; the same table is in process.py ----

enum Message : int64_t {
    LAUNCH = 1,
    RECORDS = 2,
    READ_LOCAL = 3,
    PLAY = 4,
    FINISH = 5,
    REFUSAL = 6,
    CRASH = 7,
    DEADLOCK = 8,
    ALLOCATE = 9,
    RELEASE = 10,
    PARAMETERS = 11,
};

constexpr int CALL_DEPTH = 24;
constexpr size_t STACK_BYTES = 4 << 20;
constexpr size_t MOST_BUFFERED = 1 << 18;

int to_simulator = -1, from_simulator = -1;
uint8_t* memory = nullptr;
uint64_t memory_bytes = 0, memory_used = 0;

void write_all(const void* from, size_t nbytes)
{
    auto* next = static_cast<const char*>(from);
    while (nbytes > 0) {
        ssize_t done = write(to_simulator, next, nbytes);
        if (done <= 0) {
            _exit(1);  // the simulator is gone
        }
        next += done;
        nbytes -= done;
    }
}

void read_all(void* to, size_t nbytes)
{
    auto* next = static_cast<char*>(to);
    while (nbytes > 0) {
        ssize_t done = read(from_simulator, next, nbytes);
        if (done <= 0) {
            _exit(1);
        }
        next += done;
        nbytes -= done;
    }
}

void send(Message kind, const void* payload, size_t nbytes)
{
    int64_t header[2] = {kind, int64_t(nbytes)};
    write_all(header, sizeof(header));
    write_all(payload, nbytes);
}

// ---- fibers ----

struct Fiber {
    int32_t number = 0;
    npusim::Core core{};
    ucontext_t context{};
    uint8_t* stack = nullptr;
    bool is_done = false;
    std::map<std::pair<int, int>, int> sets;   // mode and flag -> how often
    std::map<std::pair<int, int>, int> waits;
    int waits_mode = -1, waits_flag = -1;
    std::set<const void*> looked_at;           // places of global memory, and nothing done since
};

std::vector<std::unique_ptr<Fiber>> fibers;
Fiber* running = nullptr;
ucontext_t scheduler;
const npusim::Kernel* kernel_of_launch = nullptr;

// ---- records ----

struct Record {
    int32_t descriptor;
    int32_t core;
    int64_t address;
};

std::unordered_map<std::string, int32_t> descriptors;
std::string fresh_descriptors;
std::vector<Record> records;
bool has_unplayed = false;

// The addresses from which the API was called, innermost first.
__attribute__((noinline)) int calls_above(uint64_t* found)
{
    int count = 0;
    auto* frame = static_cast<uint64_t*>(__builtin_frame_address(0));
    uint64_t low = uint64_t(running ? running->stack : nullptr), high = low + STACK_BYTES;
    while (running && count < CALL_DEPTH && uint64_t(frame) >= low && uint64_t(frame) < high - 16) {
        found[count++] = frame[1];
        frame = reinterpret_cast<uint64_t*>(frame[0]);
    }
    return count;
}

void flush()
{
    if (records.empty()) {
        return;
    }
    std::string payload;
    int64_t sizes[2] = {int64_t(fresh_descriptors.size()), int64_t(records.size())};
    payload.append(reinterpret_cast<char*>(sizes), sizeof(sizes));
    payload += fresh_descriptors;
    payload.append(reinterpret_cast<char*>(records.data()), records.size() * sizeof(Record));
    send(RECORDS, payload.data(), payload.size());
    fresh_descriptors.clear();
    records.clear();
}

int32_t number_of(const char* name, const int64_t* words, int count)
{
    uint64_t calls[CALL_DEPTH];
    int depth = calls_above(calls);
    int64_t sizes[3] = {int64_t(strlen(name)), count, depth};
    std::string key;
    key.reserve(sizeof(sizes) + sizes[0] + 8 * (count + depth));
    key.append(reinterpret_cast<char*>(sizes), sizeof(sizes));
    key.append(name, sizes[0]);
    key.append(reinterpret_cast<const char*>(words), 8 * count);
    key.append(reinterpret_cast<char*>(calls), 8 * depth);
    auto [place, is_new] = descriptors.try_emplace(std::move(key), int32_t(descriptors.size()));
    if (is_new) {
        fresh_descriptors += place->first;
    }
    return place->second;
}

// ---- launches ----

void run_fiber()
{
    (*kernel_of_launch)();
    running->is_done = true;
    swapcontext(&running->context, &scheduler);
}

void add_fiber(int kind, int group, int groups, int half, int halves)
{
    auto fiber = std::make_unique<Fiber>();
    fiber->number = int32_t(fibers.size());
    npusim::Core& core = fiber->core;
    core.kind = kind;
    core.group = group;
    core.groups = groups;
    core.half = half;
    core.halves = halves;
    core.mask[0] = core.mask[1] = ~0ull;
    core.deq_scale = 1.0f;
    void* stack = mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (stack == MAP_FAILED) {
        _exit(1);
    }
    fiber->stack = static_cast<uint8_t*>(stack);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, run_fiber, 0);
    fibers.push_back(std::move(fiber));
}

bool is_of_mode(const Fiber& setter, const Fiber& waiter, int mode)
{
    bool is_near = setter.core.group == waiter.core.group;
    bool is_alike = setter.core.kind == waiter.core.kind;
    return mode == 0 ? is_alike : mode == 1 ? is_near && is_alike : is_near && !is_alike;
}

bool is_up(const Fiber& waiter, int mode, int flag)
{
    auto before = waiter.waits.find({mode, flag});
    int waited = before == waiter.waits.end() ? 0 : before->second;
    bool has_setter = false;
    for (auto& setter : fibers) {
        if (is_of_mode(*setter, waiter, mode)) {
            has_setter = true;
            auto sets = setter->sets.find({mode, flag});
            if (sets == setter->sets.end() || sets->second <= waited) {
                return false;
            }
        }
    }
    return has_setter;
}

// The mode of the flag that is up; the one that a wait names comes first. -1 for none.
int mode_up(const Fiber& waiter, int mode, int flag)
{
    for (int tried : {mode, 0, 1, 2}) {
        if (is_up(waiter, tried, flag)) {
            return tried;
        }
    }
    return -1;
}

bool can_go_on(const Fiber& fiber)
{
    return !fiber.is_done &&
           (fiber.waits_flag < 0 || mode_up(fiber, fiber.waits_mode, fiber.waits_flag) >= 0);
}

void run_all()
{
    for (bool has_gone_on = true; has_gone_on;) {
        has_gone_on = false;
        for (auto& fiber : fibers) {
            if (can_go_on(*fiber)) {
                has_gone_on = true;
                running = fiber.get();
                swapcontext(&scheduler, &fiber->context);
                running = nullptr;
            }
        }
    }
    flush();
    fflush(stdout);
    std::vector<int64_t> waiting;
    for (auto& fiber : fibers) {
        if (!fiber->is_done) {
            waiting.insert(waiting.end(), {fiber->number, fiber->waits_flag});
        }
    }
    if (!waiting.empty()) {
        send(DEADLOCK, waiting.data(), 8 * waiting.size());
        pause();
    }
}

uint64_t offset_in_memory(const void* address)
{
    return uint64_t(static_cast<const uint8_t*>(address) - memory);
}

// ---- crashes ----

void crashed(int signal, siginfo_t* info, void* context)
{
    uint64_t found[CALL_DEPTH + 3] = {uint64_t(signal), uint64_t(info->si_addr), 0};
    auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
    found[2] = machine->gregs[REG_RIP];
    auto* frame = reinterpret_cast<uint64_t*>(machine->gregs[REG_RBP]);
#elif defined(__aarch64__)
    found[2] = machine->pc;
    auto* frame = reinterpret_cast<uint64_t*>(machine->regs[29]);
#else
    uint64_t* frame = nullptr;
    (void)machine;
#endif
    int count = 3;
    uint64_t low = uint64_t(running ? running->stack : nullptr), high = low + STACK_BYTES;
    while (running && count < CALL_DEPTH && uint64_t(frame) >= low && uint64_t(frame) < high - 16) {
        found[count++] = frame[1];
        frame = reinterpret_cast<uint64_t*>(frame[0]);
    }
    if (running) {
        flush();
        send(CRASH, found, 8 * count);
        pause();
    }
    ::signal(signal, SIG_DFL);
    raise(signal);
}

void catch_crashes()
{
    static uint8_t alternate[1 << 16];
    stack_t stack{};
    stack.ss_sp = alternate;
    stack.ss_size = sizeof(alternate);
    sigaltstack(&stack, nullptr);
    struct sigaction action{};
    action.sa_sigaction = crashed;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM}) {
        sigaction(signal, &action, nullptr);
    }
}

// Takes up what the simulator has said in the environment, before anything else runs.
struct Connection {
    Connection()
    {
        const char* words = getenv("NPUSIM_ASCENDC");
        int shared = -1;
        uint64_t start = 0;
        if (words == nullptr || sscanf(words, "%d,%d,%d,%lu,%lu", &to_simulator, &from_simulator,
                                       &shared, &memory_bytes, &start) != 5) {
            fprintf(stderr, "npusim: this program must be run by npusim run\n");
            exit(2);
        }
        void* found = mmap(reinterpret_cast<void*>(start), memory_bytes, PROT_READ | PROT_WRITE,
                           MAP_SHARED | MAP_FIXED_NOREPLACE, shared, 0);
        if (found == MAP_FAILED) {
            perror("npusim: global memory");
            exit(2);
        }
        memory = static_cast<uint8_t*>(found);
        catch_crashes();
    }
} connection;

}  // namespace

extern "C" {

npusim::Core* npusim_core()
{
    static npusim::Core host{};
    return running ? &running->core : &host;
}

void npusim_record(const char* name, const int64_t* words, int count, const void* gm_address)
{
    if (!running) {
        return;
    }
    if (records.size() == MOST_BUFFERED) {
        flush();
    }
    if (strcmp(name, "GetGlobalValue") != 0) {
        running->looked_at.clear();
    }
    int64_t place = gm_address == nullptr ? -1 : int64_t(offset_in_memory(gm_address));
    records.push_back({number_of(name, words, count), running->number, place});
    has_unplayed = true;
}

void npusim_read_local(int32_t position, uint64_t address_bytes, void* to, uint64_t nbytes)
{
    flush();
    int64_t asked[4] = {running->number, position, int64_t(address_bytes), int64_t(nbytes)};
    send(READ_LOCAL, asked, sizeof(asked));
    read_all(to, nbytes);
    has_unplayed = false;
}

void npusim_yield()
{
    swapcontext(&running->context, &scheduler);
}

void npusim_play(const void* place)
{
    if (!running) {
        return;
    }
    // A core that looks at the same place again waits for another one.
    if (!running->looked_at.insert(place).second) {
        running->looked_at.clear();
        npusim_yield();
    }
    if (!has_unplayed) {
        return;
    }
    flush();
    int64_t offset = offset_in_memory(place);
    send(PLAY, &offset, sizeof(offset));
    char done;
    read_all(&done, 1);
    has_unplayed = done == 0;
}

void npusim_cross_core_set(int32_t mode, int32_t pipe, int32_t flag)
{
    int64_t words[] = {3, mode, 3, pipe, 3, flag};
    npusim_record("CrossCoreSetFlag", words, 6, nullptr);
    running->sets[{mode, flag}]++;
}

void npusim_cross_core_wait(int32_t mode, int32_t pipe, int32_t flag)
{
    running->waits_mode = mode;
    running->waits_flag = flag;
    while (mode_up(*running, mode, flag) < 0) {
        swapcontext(&running->context, &scheduler);
    }
    running->waits_flag = -1;
    mode = mode_up(*running, mode, flag);
    running->waits[{mode, flag}]++;
    int64_t words[] = {3, mode, 3, pipe, 3, flag};
    npusim_record("CrossCoreWaitFlag", words, 6, nullptr);
}

void npusim_refuse(const char* format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    uint64_t calls[CALL_DEPTH];
    int64_t depth = calls_above(calls);
    std::string payload(reinterpret_cast<char*>(&depth), 8);
    payload.append(reinterpret_cast<char*>(calls), 8 * depth);
    payload += text;
    flush();
    fflush(stdout);
    send(REFUSAL, payload.data(), payload.size());
    pause();
    _exit(1);
}

// What the assert of C does where its condition does not hold, in place of that of the library.
extern "C" void __assert_fail(const char* condition, const char* file, unsigned line,
                              const char* function) noexcept
{
    if (running) {
        npusim_refuse("assert: %s must hold, but does not; see the line", condition);
    }
    fprintf(stderr, "%s:%u: %s: Assertion `%s' failed.\n", file, line, function, condition);
    abort();
}

void npusim_describe(const int64_t* kinds_and_sizes, int count)
{
    send(PARAMETERS, kinds_and_sizes, 8 * count);
}

uint64_t npusim_read_blocks()
{
    uint64_t blocks;
    read_all(&blocks, sizeof(blocks));
    return blocks;
}

void npusim_read_argument(void* to, uint64_t nbytes)
{
    read_all(to, nbytes);
}

void* npusim_read_pointer()
{
    int64_t offset;
    read_all(&offset, sizeof(offset));
    return offset < 0 ? nullptr : memory + offset;
}

}  // extern "C"

namespace npusim {

void* allocate(uint64_t nbytes)
{
    constexpr uint64_t UNIT = 512, GAP = 1 << 16;
    uint64_t place = memory_used + GAP;
    uint64_t next = (place + nbytes + UNIT - 1) / UNIT * UNIT;
    if (next > memory_bytes) {
        return nullptr;
    }
    memory_used = next;
    int64_t payload[2] = {int64_t(place), int64_t(nbytes)};
    send(ALLOCATE, payload, sizeof(payload));
    return memory + place;
}

void release(void* place)
{
    if (place != nullptr) {
        int64_t payload = int64_t(offset_in_memory(place));
        send(RELEASE, &payload, sizeof(payload));
    }
}

void launch(const char* name, Cores cores, uint64_t blocks, const Pointers& pointers,
            const Kernel& kernel)
{
    kernel_of_launch = &kernel;
    std::vector<int64_t> words = {cores.kind, cores.halves, int64_t(blocks),
                                  int64_t(pointers.size())};
    for (const void* pointer : pointers) {
        words.push_back(pointer ? int64_t(offset_in_memory(pointer)) : -1);
    }
    std::string payload(reinterpret_cast<char*>(words.data()), 8 * words.size());
    payload += name;
    send(LAUNCH, payload.data(), payload.size());
    for (uint64_t block = 0; block < blocks; ++block) {
        add_fiber(cores.kind, block, blocks, 0, cores.halves);
        for (int half = 0; half < cores.halves; ++half) {
            add_fiber(VECTOR_CORE, block, blocks, half, cores.halves);
        }
    }
    run_all();
    for (auto& fiber : fibers) {
        munmap(fiber->stack, STACK_BYTES);
    }
    fibers.clear();
    descriptors.clear();
    has_unplayed = false;
    send(FINISH, nullptr, 0);
    char done;
    read_all(&done, 1);
}

}  // namespace npusim
