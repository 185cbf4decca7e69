// attention kernel attention
#include "tw_attention.h"

struct attention_0_shape {
    typedef TwF32 Q;
    typedef TwF32 KV;
    typedef TwF32 OUT;
    static constexpr int64_t heads = 4, kv_heads = 2;
    static constexpr int64_t head_dim = 8, page_size = 4;
    static constexpr int64_t window = 0;
    static constexpr float scale = 0.3, softcap = 0.0;
};

static TwAttention<attention_0_shape> attention_0_sizes(const int64_t* d) {
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    TwAttention<attention_0_shape> s = {};
    s.tokens = v_t;
    s.sequences = v_seqs;
    s.width = v_width;
    s.q_token_stride = 40;
    s.q_head_stride = 8;
    return s;
}

static void attention_0(TW_ARGS) {
    TwAttention<attention_0_shape> s = attention_0_sizes(d);
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    s.q = (const char*)p[0] + 8 * (int64_t)4;
    s.kv = p[1];
    s.out = p[5];
    s.table = (const int32_t*)p[2];
    s.starts = (const int32_t*)p[3];
    s.context = (const int32_t*)p[4];
    tw_attention(s, team);
}

extern "C" void attention(TW_ARGS) {
    attention_0(p, d, team);
}

extern "C" void attention_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    attention_0_sizes(d).need(need);
}
