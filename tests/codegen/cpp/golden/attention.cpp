// attention kernel attention
#include "tw_attention.h"

static TwAttention attention_0_sizes(const int64_t* d) {
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    TwAttention s = {};
    s.tokens = v_t;
    s.sequences = v_seqs;
    s.width = v_width;
    s.q_token_stride = 40;
    s.q_head_stride = 8;
    s.heads = 4;
    s.kv_heads = 2;
    s.head_dim = 8;
    s.page_size = 4;
    s.window = 0;
    s.scale = 0.3;
    s.softcap = 0.0;
    return s;
}

static void attention_0(TW_ARGS) {
    TwAttention s = attention_0_sizes(d);
    const int64_t v_seqs = d[0];
    const int64_t v_t = d[1];
    const int64_t v_width = d[2];
    s.q = (const char*)p[0] + 8 * (int64_t)4;
    s.kv = p[1];
    s.out = p[5];
    s.table = (const int32_t*)p[2];
    s.starts = (const int32_t*)p[3];
    s.context = (const int32_t*)p[4];
    tw_attention<TwF32, TwF32, TwF32>(s, team);
}

extern "C" void attention(TW_ARGS) {
    attention_0(p, d, team);
}

extern "C" void attention_scratch(const int64_t* d, int64_t nthreads, int64_t need[2]) {
    attention_0_sizes(d).need(need);
}
