// attention kernel attention
#include "tw_attention.h"

struct attention_0_shape {
    typedef TwF32 Q;
    typedef TwF32 K;
    typedef TwF32 V;
    typedef TwF32 OUT;
    typedef TwF32 MASK;
    static constexpr int64_t heads = 4, kv_heads = 2;
    static constexpr int64_t head_dim = 8, value_dim = 8;
    static constexpr int64_t page_size = 4, batch_rank = 0;
    static constexpr int64_t window = 0;
    static constexpr bool causal = true;
    static constexpr int mask_kind = 0;
    static constexpr float scale = 0.3, softcap = 0.0;
    static constexpr float unseen = 0.0f;
    static constexpr int64_t columns = 0;
    static constexpr int64_t sink = -1;
    static constexpr bool picks = false;
    static constexpr bool biased = false;
};

static TwAttention<attention_0_shape> attention_0_sizes(const int64_t* d) {
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    TwAttention<attention_0_shape> s = {};
    s.tokens = v_t;
    s.sequences = v_seqs;
    s.width = v_width;
    s.q.head = 8;
    s.q.token = 40;
    s.k.head = 32;
    s.k.token = 8;
    s.v.head = 32;
    s.v.token = 8;
    s.out.head = 8;
    s.out.token = 32;
    return s;
}

static void attention_0(TW_ARGS) {
    TwAttention<attention_0_shape> s = attention_0_sizes(d);
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    s.q.p = (const char*)p[0] + 8 * (int64_t)4;
    s.k.p = (const char*)p[1] + 0 * (int64_t)4;
    s.v.p = (const char*)p[2] + 0 * (int64_t)4;
    s.out.p = (const char*)p[6] + 0 * (int64_t)4;
    s.table = (const int32_t*)p[3];
    s.starts = (const int32_t*)p[4];
    s.context = (const int32_t*)p[5];
    tw_attention(s, team);
}

extern "C" void attention(TW_ARGS) {
    attention_0(p, d, team);
}

extern "C" void attention_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    attention_0_sizes(d).need(need);
}
