#include "espalier/tune/goodput.hpp"

#include <cmath>

namespace espalier {

double YoungIntervalS(double save_s, double mtbf_s) { return std::sqrt(2 * save_s * mtbf_s); }

double DalyIntervalS(double save_s, double mtbf_s) {
  if (save_s >= 2 * mtbf_s) return mtbf_s;
  const double x = save_s / (2 * mtbf_s);
  return YoungIntervalS(save_s, mtbf_s) * (1 + std::sqrt(x) / 3 + x / 9) - save_s;
}

double Goodput(const GoodputQuestion& q) {
  const double m = q.mtbf_s;
  return q.interval_s / (m * std::exp(q.restart_s / m) * std::expm1((q.interval_s + q.save_s) / m));
}

}  // namespace espalier
